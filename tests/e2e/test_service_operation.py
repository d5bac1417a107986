"""Clients that leave, wait, crowd, stall or break things; engines that do."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from adjudge.engine_door import Item
from adjudge.errors import DeviceError
from adjudge.scheduler import ExitCode, Job
from adjudge.service.listener import MAX_HEAD_BYTES
from tests.fake_engine import FakeEngine
from tests.service_rig import CHOICE, NOUL, SOON, Rig, running


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running() as one:
        yield one


def body(state: str = "It rains.") -> dict[str, Any]:
    return {"state": state, "questions": {"q": NOUL}}


@contextmanager
def callers(count: int = 8) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as pool:
        yield pool


def head(length: int, path: str = "/v1/systemone") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    ).encode()


def connected(rig: Rig, data: bytes) -> socket.socket:
    link = socket.create_connection(rig.address, timeout=SOON)
    link.sendall(data)
    return link


def status_of(link: socket.socket) -> int:
    with link.makefile("rb") as reader:
        return int(reader.readline().split()[1])


@contextmanager
def occupied(rig: Rig, pool: ThreadPoolExecutor) -> Iterator[Future[httpx.Response]]:
    """The engine busy with a request until the block ends; then the request is answered."""
    rig.engine.gate.clear()
    running_request = pool.submit(rig.ask, body("occupies the engine"))
    assert rig.engine.entered.acquire(timeout=SOON)
    try:
        yield running_request
    finally:
        rig.engine.gate.set()
    assert running_request.result(SOON).status_code == 200


def states(engine: FakeEngine) -> list[str]:
    """The text of every prompt that ran."""
    return [
        bytes(item.token_ids.astype("uint8")).decode() for items in engine.passes for item in items
    ]


class Submitted:
    """Counts the jobs that reach the queue, so that a test knows when they wait."""

    def __init__(self, rig: Rig) -> None:
        self.arrived = threading.Semaphore(0)
        self.opened = threading.Semaphore(0)
        self.resolved = threading.Semaphore(0)
        submit, open_job = rig.scheduler.submit, rig.scheduler.open_job

        def submitting(job: Job, *rest: Any) -> None:
            submit(job, *rest)
            self.arrived.release()

        def opening(on_resolved: Any, **options: Any) -> Job:
            def resolved(job: Job) -> None:
                on_resolved(job)
                self.resolved.release()

            job = open_job(resolved, **options)
            self.opened.release()
            return job

        rig.scheduler.submit = submitting
        rig.scheduler.open_job = opening

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.arrived.acquire(timeout=SOON)

    def wait_opened(self) -> None:
        assert self.opened.acquire(timeout=SOON)

    def wait_resolved(self) -> None:
        assert self.resolved.acquire(timeout=SOON)


def test_requests_that_came_meanwhile_share_the_next_pass() -> None:
    with running() as rig, callers() as pool:
        submitted = Submitted(rig)
        with occupied(rig, pool):
            submitted.wait()
            waiting = [pool.submit(rig.ask, body(f"state {i}")) for i in range(5)]
            submitted.wait(5)
        answers = [one.result(SOON).json()["answers"] for one in waiting]
        assert [len(items) for items in rig.engine.passes] == [1, 5]
        alone = [rig.ask(body(f"state {i}")).json()["answers"] for i in range(5)]
        assert answers == alone


def test_a_client_that_leaves_before_dispatch_costs_no_pass() -> None:
    with running() as rig, callers() as pool:
        submitted = Submitted(rig)
        with occupied(rig, pool):
            submitted.wait()
            data = json.dumps(body("left alone")).encode()
            link = connected(rig, head(len(data)) + data)
            submitted.wait()
            link.close()
            submitted.wait_resolved()
            stays = pool.submit(rig.ask, body("stays"))
            submitted.wait()
        assert stays.result(SOON).status_code == 200
        assert not any("left alone" in text for text in states(rig.engine))


def test_a_deadline_that_passes_in_the_queue_is_408_at_once_and_never_runs() -> None:
    with running() as rig, callers() as pool, occupied(rig, pool):
        reply = rig.ask(body("late"), headers={"x-deadline-ms": "30"})
        assert reply.status_code == 408
        assert "x-deadline-ms" in reply.json()["detail"]["message"]
        assert reply.headers["x-request-id"]
    assert not any("late" in text for text in states(rig.engine))


def test_a_deadline_that_passes_while_it_runs_is_408_and_the_next_is_answered() -> None:
    with running(deadline_ms=30) as rig:
        rig.engine.gate.clear()
        assert rig.ask(body("slow")).status_code == 408
        rig.engine.gate.set()
        assert rig.ask(body(), headers={"x-deadline-ms": "20000"}).status_code == 200


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "9999999999", "٣"])
def test_a_deadline_must_be_a_number_of_milliseconds(value: str) -> None:
    with running() as rig:
        reply = rig.ask(body(), headers={"x-deadline-ms": value.encode()})  # type: ignore[dict-item]
        assert reply.status_code == 400


def test_a_full_queue_answers_529_at_once_with_both_times() -> None:
    with running(max_queue_jobs=2) as rig, callers() as pool:
        submitted = Submitted(rig)
        with occupied(rig, pool):
            submitted.wait()
            waits = pool.submit(rig.ask, body("waits"))
            submitted.wait()
            reply = rig.ask(b"{")
            assert reply.status_code == 529
            assert reply.json()["detail"]["error_type"] == "overloaded_error"
            assert 0 < int(reply.headers["retry-after-ms"]) <= 10_000
            assert 0 < int(reply.headers["retry-after"]) <= 10
        assert waits.result(SOON).status_code == 200
        assert rig.ask(body()).status_code == 200


def test_too_many_waiting_tokens_answer_529_too() -> None:
    with running(max_queue_tokens=400) as rig, callers() as pool:
        submitted = Submitted(rig)
        with occupied(rig, pool):
            submitted.wait()
            reply = rig.ask(body("x" * 300))
            assert reply.status_code == 529
            assert "400" in reply.json()["detail"]["message"]
        assert rig.ask(body("x" * 300)).status_code == 200


def test_stalled_uploads_hold_no_place_in_the_queue() -> None:
    with running(max_queue_jobs=1, body_timeout_ms=20_000) as rig, ExitStack() as stalled:
        for _ in range(16):
            stalled.enter_context(connected(rig, head(1000) + b"{"))
        assert rig.ask(body()).status_code == 200


def test_a_stalled_upload_is_408_and_its_connection_is_closed() -> None:
    with running(body_timeout_ms=50) as rig:
        for sent in (b"", b'{"state"'):
            with connected(rig, head(1000) + sent) as link, link.makefile("rb") as reader:
                reply = reader.read()
            assert reply.startswith(b"HTTP/1.1 408")
            assert b"connection: close" in reply.lower()
            assert f"{len(sent)} bytes came".encode() in reply


def test_a_body_too_large_is_refused_by_its_head_and_while_it_comes() -> None:
    with running(max_body_bytes=2000) as rig:
        with connected(rig, head(2001)) as link:
            assert status_of(link) == 413
        chunked = (
            b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n"
        )
        with connected(rig, chunked) as link:
            link.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
            assert status_of(link) == 413
        assert rig.ask(body()).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        b"POST /v1/systemone HTTP/1.1\r\nno header\r\n\r\n",
        b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_json(rig: Rig, data: bytes) -> None:
    with connected(rig, data) as link:
        refused(link)
    assert rig.ask(body()).status_code == 200


@pytest.mark.parametrize(
    "endless",
    [
        b"a" * (MAX_HEAD_BYTES + 1),
        # A field of five bytes, after 18, is counted when the next one begins.
        b"\r\n" + b"x: a\r\n" * ((MAX_HEAD_BYTES - 18) // 5 + 1) + b"x",
    ],
)
def test_a_head_without_end_is_refused_in_json(rig: Rig, endless: bytes) -> None:
    begun = b"GET /version HTTP/1.1\r\nx-long: a"
    with connected(rig, b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n" + begun) as link:
        assert link.recv(4096).startswith(b"HTTP/1.1 200")
        # The server has read so far; the byte that is one too many is the last that it gets.
        link.sendall(endless)
        refused(link)
    assert rig.ask(body()).status_code == 200


@pytest.mark.parametrize("piece", [1 << 20, 20_000, 1])
@pytest.mark.parametrize("more", [0, 1])
def test_a_head_is_held_to_its_limit_in_whatever_pieces_it_comes(
    rig: Rig, more: int, piece: int
) -> None:
    long = MAX_HEAD_BYTES + more - len(b"/version") - len(b"host:x\r\n") - len(b"x:\r\n") - 40_000
    fields = b"host:x\r\n" + b"x:" + b"a" * long + b"\r\n" + b"y:b\r\n" * 10_000 + b"\r\n"
    # y:b and its line's end are five bytes, of which each is counted, so that 8,000 make 40,000.
    fields = fields.replace(b"y:b\r\n" * 2_000, b"", 1)
    whole = b"GET /version HTTP/1.1\r\n" + fields
    with connected(rig, whole[:1]) as link:
        for start in range(1, 200 if piece == 1 else len(whole), piece):
            link.sendall(whole[start : start + piece])
        if piece == 1:
            link.sendall(whole[200:])
        if more:
            refused(link)
        else:
            assert link.recv(4096).startswith(b"HTTP/1.1 200")


def test_what_came_before_a_bad_head_is_answered_first(rig: Rig) -> None:
    content = json.dumps(body()).encode()
    opening = head(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    for bad in (
        b"GET / HTTP/1.1\r\nx: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n", b"\x16\x03\x01",
        opening + b"zz\r\n", head(len(content)) + content + opening + b"zz\r\n",
    ):  # fmt: skip
        rig.engine.gate.clear()
        with connected(rig, head(len(content)) + content + bad) as link:
            assert rig.engine.entered.acquire(timeout=SOON)
            rig.engine.gate.set()
            with link.makefile("rb") as reader:
                sent = reader.read()
        statuses = [status for status in re.findall(rb"HTTP/1.1 (\d+) ", sent) if status != b"100"]
        before = 1 + bad.count(b"content-length: ")
        assert statuses == [*[b"200"] * before, b"400"], bad[:80]


def test_a_trailer_is_held_to_the_limit_of_a_head(rig: Rig) -> None:
    content = json.dumps(body()).encode()
    opening = head(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(content), content)
    with connected(rig, opening + chunk + b"x: a\r\n\r\n") as link:
        assert status_of(link) == 200
    with connected(rig, opening + chunk + b"x: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n") as link:
        refused(link)
    assert rig.ask(body()).status_code == 200


def test_a_connection_that_sends_nothing_is_closed() -> None:
    with running(head_timeout_ms=300) as rig:
        with connected(rig, b"") as link:
            assert link.recv(1) == b""
        assert rig.ask(body()).status_code == 200


@pytest.mark.parametrize("before", [b"", b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"])
@pytest.mark.parametrize("begun", [b"G", b"GET /version HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_stalls_is_408_on_a_new_connection_and_on_a_kept_one(
    before: bytes, begun: bytes
) -> None:
    with running(head_timeout_ms=300) as rig:
        with connected(rig, before + begun) as link, link.makefile("rb") as reader:
            sent = reader.read()
        refusal = sent[sent.rindex(b"HTTP/1.1 4") :]
        assert refusal.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"connection: close" in refusal
        told = json.loads(refusal.partition(b"\r\n\r\n")[2])["detail"]
        assert "not whole within 0.3 s" in told["message"]


def test_the_time_of_a_head_does_not_run_while_a_request_is_answered() -> None:
    with running(head_timeout_ms=300) as rig, connected(rig, b"") as link:
        rig.engine.gate.clear()
        content = json.dumps(body()).encode()
        link.sendall(head(len(content)) + content)
        assert rig.engine.entered.acquire(timeout=SOON)
        with connected(rig, b"") as other:
            assert other.recv(1) == b"", "a later connection's time is over"
        rig.engine.gate.set()
        assert status_of(link) == 200


def refused(link: socket.socket) -> None:
    """The last reply on the connection is a 400 of our own shape."""
    with link.makefile("rb") as reader:
        sent = reader.read()
    head, _, content = sent[sent.rindex(b"HTTP/1.1 4") :].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert json.loads(content)["detail"]["error_type"] == "api_usage_error"


def test_small_chunks_are_no_head(rig: Rig) -> None:
    content = json.dumps(body()).encode() + b" " * 70_000
    opening = head(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in content) + b"0\r\n\r\n"
    assert len(chunks) > MAX_HEAD_BYTES + (256 << 10)  # more than is read at once
    with connected(rig, opening + chunks) as link:
        assert status_of(link) == 200


def test_a_client_that_leaves_while_sending_changes_nothing() -> None:
    with running() as rig:
        connected(rig, head(1000) + b'{"state"').close()
        assert rig.ask(body()).status_code == 200


def poison(text: str, error: BaseException) -> Any:
    """Break every pass that holds the text."""

    def found(items: Sequence[Item]) -> BaseException | None:
        texts = [bytes(item.token_ids.astype("uint8")) for item in items]
        return error if any(text.encode() in one for one in texts) else None

    return found


def test_a_request_that_breaks_its_pass_breaks_nobody_elses() -> None:
    with running() as rig, callers() as pool:
        submitted = Submitted(rig)
        with occupied(rig, pool):
            submitted.wait()
            rig.engine.break_with = poison("poison", RuntimeError("poison text"))
            good = [pool.submit(rig.ask, body(f"good {i}")) for i in range(3)]
            bad = pool.submit(rig.ask, body("poison"))
            submitted.wait(4)
        assert [one.result(SOON).status_code for one in good] == [200] * 3
        reply = bad.result(SOON)
        assert reply.status_code == 500
        assert "poison" not in reply.text
        assert rig.ask(body()).status_code == 200


def test_an_unsound_device_answers_all_pending_and_turns_health_off() -> None:
    with running() as rig, callers() as pool:
        submitted = Submitted(rig)
        rig.engine.break_with = lambda items: DeviceError("an illegal address was read")
        rig.engine.gate.clear()
        pending = [pool.submit(rig.ask, body(f"state {i}")) for i in range(4)]
        submitted.wait(4)
        rig.engine.gate.set()
        for one in pending:
            reply = one.result(SOON)
            assert reply.status_code == 503
            assert "illegal address" in reply.json()["detail"]["message"]
        assert rig.client.get("/health").status_code == 503
        assert rig.ask(body()).status_code == 503
        assert [fault.exit_code for fault in rig.faults] == [ExitCode.DEVICE_UNSOUND]


def test_large_and_small_requests_together_answer_as_alone() -> None:
    options = {f"option {i}": None for i in range(60)}
    large = {"state": "s", "questions": {"q": CHOICE | {"criteria": options}}}
    with running(FakeEngine(max_rows=1024)) as rig, callers() as pool:
        submitted = Submitted(rig)
        with occupied(rig, pool):
            submitted.wait()
            big = pool.submit(rig.ask, large)
            small = [pool.submit(rig.ask, body(f"state {i}")) for i in range(6)]
            submitted.wait(7)
        together = [one.result(SOON).json()["answers"] for one in (big, *small)]
        alone = [rig.ask(large).json()["answers"]]
        alone += [rig.ask(body(f"state {i}")).json()["answers"] for i in range(6)]
        assert together == alone


def test_pipelined_requests_are_answered_in_order() -> None:
    with running() as rig:
        data = [json.dumps(body(f"state {i}")).encode() for i in range(3)]
        sent = b"".join(head(len(one)) + one for one in data)
        with connected(rig, sent) as link, link.makefile("rb") as reader:
            for _ in data:
                assert reader.readline().startswith(b"HTTP/1.1 200")
                length = 0
                while (line := reader.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                assert json.loads(reader.read(length))["answers"]["q"]
