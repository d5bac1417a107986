"""Requests whose preparation takes long: clients that leave, deadlines, bounds, faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from adjudge.engine_door import Work
from adjudge.scheduler import Fault
from adjudge.service import decide, media
from adjudge.wire import Request, decode_json
from tests.e2e.test_service_operation import Submitted, connected, head, status_of
from tests.fake_engine import FakeEngine
from tests.service_rig import NOUL, SOON, Rig, running

PATHS = ["/v1/systemone", "/v1/systemone/tokens"]
LARGE = " " * (17 << 10)
"""Enough white space in a body for its request to be prepared on a thread."""


class SlowToCompile(FakeEngine):
    """compiling: released when a compilation begins; may_compile: it waits for that."""

    def __init__(self) -> None:
        super().__init__()
        self.compiling = threading.Semaphore(0)
        self.may_compile = threading.Event()
        self.compiled: list[Any] = []

    def compile(self, request: Request) -> Work:
        self.compiled.append(request.state)
        self.compiling.release()
        assert self.may_compile.wait(SOON)
        return super().compile(request)


def large(state: str) -> bytes:
    return json.dumps({"state": state, "questions": {"q": NOUL}}).encode() + LARGE.encode()


@contextmanager
def busy(path: str = PATHS[0], **settings: Any) -> Iterator[tuple[Rig, SlowToCompile, list[Any]]]:
    """Both threads compile until the block ends or the engine may; the requests they do it for."""
    engine = SlowToCompile()
    with running(engine, **settings) as rig, ThreadPoolExecutor(4) as pool:
        try:
            asked: list[Future[httpx.Response]] = []
            for name in ("first", "second"):
                asked.append(pool.submit(rig.ask, large(name), path))
                assert engine.compiling.acquire(timeout=SOON)
            yield rig, engine, asked
        finally:
            engine.may_compile.set()
        for one in asked:
            one.result(SOON)


@pytest.mark.parametrize("path", PATHS)
def test_work_of_a_client_that_left_is_not_begun(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bytes] = []

    def decoding(data: bytes) -> Any:
        begun.append(data)
        return decode_json(data)

    with busy() as (rig, engine, asked):
        monkeypatch.setattr(decide, "decode_json", decoding)
        submitted = Submitted(rig)
        data = large("left alone")
        with connected(rig, head(len(data), path) + data):
            submitted.wait_opened()
        submitted.wait_resolved()
        assert rig.scheduler.pending[0] == 2
        engine.may_compile.set()
        assert rig.ask(large("stays"), path).status_code == 200
        assert [one.result(SOON).status_code for one in asked] == [200, 200]
    assert begun == [large("stays")]
    assert engine.compiled == ["first", "second", "stays"]


@pytest.mark.parametrize("path", PATHS)
def test_what_is_prepared_counts_into_the_queue(path: str) -> None:
    with busy(path, max_queue_jobs=2) as (rig, engine, asked):
        for refused in PATHS:
            reply = rig.ask(large("third"), refused)
            assert reply.status_code == 529
            assert 0 < int(reply.headers["retry-after-ms"]) <= 10_000
            assert 0 < int(reply.headers["retry-after"]) <= 10
        engine.may_compile.set()
        assert [one.result(SOON).status_code for one in asked] == [200, 200]
        assert rig.ask(large("fourth"), path).status_code == 200


def test_texts_of_requests_in_progress_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "KEPT_BYTES", 40 << 10)
    monkeypatch.setattr(media, "UPLOADS_AT_ONCE", 1)
    with busy(max_body_bytes=40 << 10) as (rig, engine, asked):
        reply = rig.ask(large("third"))
        assert reply.status_code == 529
        assert reply.headers["retry-after-ms"] and reply.headers["retry-after"]
        engine.may_compile.set()
        assert [one.result(SOON).status_code for one in asked] == [200, 200]
        assert rig.ask(large("fourth")).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_deadline_that_passes_during_preparation_is_408_at_once(path: str) -> None:
    with busy() as (rig, engine, _):
        reply = rig.ask(large("waits"), path, headers={"x-deadline-ms": "30"})
        assert reply.status_code == 408
        assert "x-deadline-ms" in reply.json()["detail"]["message"]
    assert "waits" not in engine.compiled
    engine = SlowToCompile()
    with running(engine) as rig:
        reply = rig.ask(large("compiles"), path, headers={"x-deadline-ms": "200"})
        assert reply.status_code == 408
        engine.may_compile.set()


@pytest.mark.parametrize("path", PATHS)
def test_a_deadline_that_passes_while_the_body_arrives_is_408_at_once(path: str) -> None:
    with running(body_timeout_ms=600_000) as rig:
        stalled = head(1000, path).replace(b"\r\n\r\n", b"\r\nx-deadline-ms: 30\r\n\r\n") + b"{"
        with connected(rig, stalled) as link:
            assert status_of(link) == 408


def test_a_fault_answers_what_is_being_prepared_at_once() -> None:
    with busy() as (rig, _, asked):
        rig.scheduler.fail(Fault("an illegal address was read", 3))
        assert [one.result(SOON).status_code for one in asked] == [503, 503]


@pytest.mark.parametrize("path", PATHS)
def test_the_largest_are_prepared_one_at_a_time_and_hold_up_no_other(path: str) -> None:
    engine = SlowToCompile()
    largest = b" " * (decide.LARGE_BYTES + 1)
    with running(engine) as rig, ThreadPoolExecutor(4) as pool:
        try:
            submitted = Submitted(rig)
            asked = [pool.submit(rig.ask, large("largest") + largest, path) for _ in range(2)]
            for _ in asked:
                submitted.wait_opened()
            assert engine.compiling.acquire(timeout=SOON)
            for name in ("first", "second"):
                asked.append(pool.submit(rig.ask, large(name), path))
                assert engine.compiling.acquire(timeout=SOON)
            assert sorted(engine.compiled) == ["first", "largest", "second"]
        finally:
            engine.may_compile.set()
        assert [one.result(SOON).status_code for one in asked] == [200] * 4
