"""From start to exit code: loading, ready, signals, draining, faults, the address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from adjudge.scheduler import ExitCode
from adjudge.service.admitted import INLINE_BYTES
from tests.service_rig import NOUL, SOON

SERVER = Path(__file__).parents[1] / "fake_server.py"
BODY = {"state": "It rains.", "questions": {"q": NOUL}}


class Server:
    """A server process steered by files in a folder."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process
        self.url = ""
        self.log: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.log.append(json.loads(line) if line.startswith("{") else {"message": line})

    def wait_ready(self) -> None:
        assert self.process.stdout
        word, _, self.url = self.process.stdout.readline().strip().partition(" ")
        assert word == "ready", self.log

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        code = self.process.wait(SOON)
        self._reader.join(SOON)
        return code

    def said(self, text: str) -> bool:
        return any(text in str(line.get("message")) for line in self.log)

    def ask(self, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/systemone", json=BODY, timeout=SOON, **options)

    def health(self) -> httpx.Response:
        return httpx.get(f"{self.url}/health", timeout=SOON)

    def wait_for(self, name: str) -> None:
        wait_until((self.folder / name).exists)

    def begin_held_pass(self, pool: ThreadPoolExecutor) -> Future[httpx.Response]:
        """A request whose pass has begun and waits while the file `held` is there."""
        (self.folder / "held").touch()
        (self.folder / "pass-began").unlink()
        pending = pool.submit(self.ask)
        self.wait_for("pass-began")
        return pending

    def begin_held_compiling(self, pool: ThreadPoolExecutor) -> Future[httpx.Response]:
        """A request that a thread compiles, for as long as the file `compiling` is there."""
        (self.folder / "compiling").touch()
        (self.folder / "compiling-began").unlink()
        content = json.dumps(BODY) + " " * INLINE_BYTES
        headers = {"content-type": "application/json"}
        url = f"{self.url}/v1/systemone"
        pending = pool.submit(httpx.post, url, content=content, headers=headers, timeout=SOON)
        self.wait_for("compiling-began")
        return pending

    def stalled_upload(self) -> socket.socket:
        """A connection with a request whose body is read, and never ends."""
        link = socket.create_connection(("127.0.0.1", httpx.URL(self.url).port), timeout=SOON)
        link.sendall(
            b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 1000\r\nexpect: 100-continue\r\n\r\n"
        )
        with link.makefile("rb", buffering=0) as reader:
            assert reader.readline() + reader.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
        return link


def wait_until(condition: Any) -> None:
    """What another process will do; there is no event to wait for but a look now and then."""
    end, pause = monotonic() + SOON, threading.Event()
    while not condition():
        assert monotonic() < end
        pause.wait(0.005)


@contextmanager
def started(folder: Path, **settings: Any) -> Iterator[Server]:
    words = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(SERVER), str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    server = Server(folder, process)
    try:
        yield server
    finally:
        process.kill()
        server.exit_code()
        assert process.stdout and process.stderr
        process.stdout.close()
        process.stderr.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as one:
        yield one


def test_ready_is_said_once_the_whole_path_has_answered(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        server.wait_ready()
        assert (tmp_path / "pass-began").exists()
        assert server.ask().status_code == 200
        server.signal()
        assert server.exit_code() == ExitCode.CLEAN
        assert server.process.stdout and server.process.stdout.read() == ""


def test_the_port_is_closed_while_loading_and_while_warming_up(tmp_path: Path) -> None:
    (tmp_path / "loading").touch()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with started(tmp_path, port=port) as server:
        server.wait_for("loading-began")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        (tmp_path / "held").touch()
        (tmp_path / "loading").unlink()
        server.wait_for("pass-began")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        (tmp_path / "held").unlink()
        server.wait_ready()
        assert server.ask().status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_loading_ends_the_process_cleanly(tmp_path: Path, number: int) -> None:
    (tmp_path / "loading").touch()
    with started(tmp_path) as server:
        server.wait_for("loading-began")
        server.signal(number)
        assert server.exit_code() == ExitCode.CLEAN


def test_a_signal_while_warming_up_ends_the_process_cleanly(tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    with started(tmp_path) as server:
        server.wait_for("pass-began")
        server.signal()
        assert server.exit_code() == ExitCode.CLEAN


def test_sigterm_turns_readiness_off_serves_on_drains_and_exits_0(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with started(tmp_path, ready_grace_ms=1000, drain_ms=20_000) as server:
        server.wait_ready()
        pending = server.begin_held_pass(pool)
        began = monotonic()
        server.signal()
        wait_until(lambda: server.health().status_code == 503)
        assert server.health().json()["status"] == "draining"
        late = pool.submit(server.ask)
        wait_until(lambda: server.said("stopping"))
        port = int(server.url.rpartition(":")[2])
        wait_until(lambda: refused(port))
        assert monotonic() - began > 1.0
        (tmp_path / "held").unlink()
        assert pending.result(SOON).status_code == 200
        assert late.result(SOON).status_code == 200
        assert server.exit_code() == ExitCode.CLEAN


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("again", [False, True])
def test_what_does_not_finish_in_time_is_answered_503_and_told_by_the_exit_code(
    tmp_path: Path, pool: ThreadPoolExecutor, again: bool
) -> None:
    with started(tmp_path, drain_ms=20_000 if again else 200) as server:
        server.wait_ready()
        pending = server.begin_held_pass(pool)
        server.signal()
        if again:
            wait_until(lambda: server.said("stopping"))
            server.signal()
        assert pending.result(SOON).status_code == 503
        assert server.exit_code() == ExitCode.DRAIN_CUT
        assert server.said("the drain was cut")


def test_what_is_still_prepared_or_arriving_is_answered_503_and_nobody_waits_for_it(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with started(tmp_path, drain_ms=200, body_timeout_ms=600_000) as server:
        server.wait_ready()
        pending = server.begin_held_compiling(pool)
        with server.stalled_upload() as link:
            server.signal()
            assert pending.result(SOON).status_code == 503
            assert link.recv(12) == b"HTTP/1.1 503"
        assert server.exit_code() == ExitCode.DRAIN_CUT  # its thread still compiles
        cut = [line for line in server.log if line["message"] == "the drain was cut"]
        assert [line["requests"] for line in cut] == [2]
        assert not server.said("Traceback")
        assert not server.said("Exception")


def test_what_is_prepared_within_the_drain_is_answered(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with started(tmp_path, drain_ms=20_000) as server:
        server.wait_ready()
        pending = server.begin_held_compiling(pool)
        server.signal()
        wait_until(lambda: server.said("stopping"))
        (tmp_path / "compiling").unlink()
        assert pending.result(SOON).status_code == 200
        assert server.exit_code() == ExitCode.CLEAN
        assert not server.said("the drain was cut")


@pytest.mark.parametrize(
    "kind, code",
    [
        ("unsound", ExitCode.DEVICE_UNSOUND),
        ("dies", ExitCode.ENGINE_LOST),
        ("stalls", ExitCode.ENGINE_LOST),
    ],
)
def test_a_lost_engine_answers_pending_within_a_second_and_exits_with_its_code(
    tmp_path: Path, pool: ThreadPoolExecutor, kind: str, code: int
) -> None:
    with started(tmp_path, watchdog_ms=500) as server:
        server.wait_ready()
        (tmp_path / "break").write_text(kind)
        began = monotonic()
        pending = [pool.submit(server.ask) for _ in range(3)]
        health = pool.submit(wait_until, lambda: server.health().status_code == 503)
        for one in pending:
            assert one.result(SOON).status_code == 503
        limit = 1.5 if kind == "stalls" else 1.0
        assert monotonic() - began < limit
        health.result(SOON)
        assert server.health().json()["reason"]
        assert server.exit_code() == code
        assert server.said("the engine stopped")


def test_a_killed_process_leaves_no_client_waiting(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with started(tmp_path) as server:
        server.wait_ready()
        pending = server.begin_held_pass(pool)
        began = monotonic()
        server.process.kill()
        with pytest.raises(httpx.TransportError):
            pending.result(SOON)
        assert monotonic() - began < 1.0
        assert server.exit_code() == -signal.SIGKILL


@pytest.mark.parametrize(
    "file, code, message",
    [
        ("refuse", ExitCode.REFUSED, "head.pt: the key bias is missing"),
        ("unsound", ExitCode.DEVICE_UNSOUND, "self-check failed"),
    ],
)
def test_a_model_or_device_that_is_refused(
    tmp_path: Path, file: str, code: int, message: str
) -> None:
    (tmp_path / file).touch()
    with started(tmp_path) as server:
        assert server.exit_code() == code
        assert server.said(message)


def test_a_warm_up_that_fails_opens_no_port(tmp_path: Path) -> None:
    (tmp_path / "break").write_text("unsound")
    with started(tmp_path) as server:
        assert server.exit_code() == ExitCode.DEVICE_UNSOUND
        assert server.said("the warm-up failed")
        assert server.process.stdout and server.process.stdout.read() == ""


def test_narrow_limits_are_no_fault(tmp_path: Path) -> None:
    with started(tmp_path, max_questions=1, max_candidates=1) as server:
        server.wait_ready()
        server.signal()
        assert server.exit_code() == ExitCode.CLEAN
        assert server.said("own small choice question to")
        assert server.said("refused under the limits in force")


def test_a_port_in_use_is_refused_before_anything_loads(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(tmp_path, port=port) as server:
            assert server.exit_code() == ExitCode.REFUSED
            assert server.said(f"port {port} on 127.0.0.1 is in use")
    assert not (tmp_path / "loading-began").exists()


def test_a_public_address_without_a_key_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, host="0.0.0.0") as server:
        assert server.exit_code() == ExitCode.REFUSED
        assert server.said("insecure")


def test_log_lines_are_json_with_ids_and_timings(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        server.wait_ready()
        server.ask(headers={"x-request-id": "mine-1"})
        server.signal()
        server.exit_code()
        line = next(one for one in server.log if one.get("request_id") == "mine-1")
        assert line["status"] == 200 and line["prompts"] == 1
        assert {"tokenise_ms", "queue_ms", "run_ms", "ms", "time", "level"} <= line.keys()
        assert all("message" in one for one in server.log)


def test_a_damaged_body_writes_its_exchanges_line_and_no_other(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        server.wait_ready()
        httpx.post(
            f"{server.url}/v1/systemone",
            content=b"--B\r\nContent-\xffzebra",
            headers={"content-type": "multipart/form-data; boundary=B", "x-request-id": "mine-1"},
        )
        server.signal()
        server.exit_code()
        after = server.log[[one.get("message") for one in server.log].index("ready") + 1 :]
        assert [one.get("request_id") for one in after] == ["mine-1", None, None]
        assert "zebra" not in json.dumps(server.log)
