"""The worker thread and its supervision: a bad pass, an unsound device, a hung or dead worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from adjudge.engine_door import Item
from adjudge.errors import CheckpointError, DeviceError, InternalError, Unavailable
from adjudge.scheduler import (
    Cancelled,
    ExitCode,
    Fault,
    Job,
    PassReport,
    QueueLimits,
    Ran,
    Scheduler,
    Watchdog,
    Worker,
)
from tests.fake_engine import FakeEngine, work_of

SOON = 20.0
"""Seconds after which a wait that should be over at once counts as failed."""


class Running:
    """A scheduler with a real worker thread over a fake engine."""

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self.engine = FakeEngine(max_rows=100)
        self.faults: list[Fault] = []
        self.reports: list[PassReport] = []
        self.failed = threading.Event()
        self.loaded = threading.Event()
        options = {} if clock is None else {"clock": clock}
        self.scheduler = Scheduler(
            QueueLimits(jobs=100, rows=10_000),
            on_pass=self.reports.append,
            on_fault=self.on_fault,
            **options,
        )
        self.worker = Worker(self.scheduler, lambda: {"fake": self.engine}, self.on_loaded)

    def on_loaded(self, doors: object) -> None:
        self.loaded.set()

    def on_fault(self, fault: Fault) -> None:
        self.faults.append(fault)
        self.failed.set()

    def submit(self, *prompts: Sequence[int]) -> Waited:
        waited = Waited()
        job = self.scheduler.open_job(waited.on_resolved)
        self.scheduler.submit(job, self.engine, work_of(*prompts))
        return waited


class Waited:
    """A job's outcome, to wait for."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._over = threading.Event()

    def on_resolved(self, job: Job) -> None:
        self._job = job
        self._over.set()

    @property
    def outcome(self) -> object:
        assert self._over.wait(SOON), "the job was not resolved"
        assert self._job is not None
        return self._job.outcome


@pytest.fixture
def running() -> Iterator[Running]:
    one = Running()
    one.worker.start()
    yield one
    one.engine.gate.set()
    one.scheduler.stop()
    one.worker.join(SOON)
    assert not one.worker.is_alive()


def held(running: Running, *prompts: Sequence[int]) -> Waited:
    """A job whose pass has begun and waits at the gate."""
    running.engine.gate.clear()
    waited = running.submit(*prompts)
    assert running.engine.entered.acquire(timeout=SOON)
    return waited


def poison(token: int, error: BaseException) -> Callable[[Sequence[Item]], BaseException | None]:
    """Break every pass that holds the token."""
    return lambda items: error if any(token in item.token_ids for item in items) else None


def test_an_idle_engine_starts_at_once_and_a_busy_one_batches_what_came(running: Running) -> None:
    first = held(running, [1, 2, 3])
    more = [running.submit([4, 5, i]) for i in range(4)]
    running.engine.gate.set()
    assert all(isinstance(one.outcome, Ran) for one in (first, *more))
    assert [len(items) for items in running.engine.passes] == [1, 4]


def test_the_bad_job_of_a_pass_is_found_and_the_others_are_answered(running: Running) -> None:
    first = held(running, [1])
    running.engine.break_with = poison(13, RuntimeError("user text 13"))
    good, bad, fine = running.submit([1, 2]), running.submit([1, 13]), running.submit([1, 3])
    running.engine.gate.set()
    assert isinstance(bad.outcome, InternalError)
    assert "user text" not in bad.outcome.message
    assert all(isinstance(one.outcome, Ran) for one in (first, good, fine))
    assert isinstance(running.submit([1, 4]).outcome, Ran)


@pytest.mark.parametrize("leaving", [{2}, {3}, {2, 3}])
def test_after_a_bad_pass_nothing_runs_for_callers_who_left(
    running: Running, leaving: set[int]
) -> None:
    first = held(running, [1])
    waited = {token: Waited() for token in (2, 3)}
    jobs = {t: running.scheduler.open_job(one.on_resolved) for t, one in waited.items()}
    for token, job in jobs.items():
        running.scheduler.submit(job, running.engine, work_of([token]))

    def break_once(items: Sequence[Item]) -> BaseException | None:
        if len(items) > 1:
            assert all(running.scheduler.cancel(jobs[token]) for token in leaving)
            return RuntimeError()
        return None

    running.engine.break_with = break_once
    running.engine.gate.set()
    assert isinstance(first.outcome, Ran)
    for token, one in waited.items():
        assert isinstance(one.outcome, Cancelled if token in leaving else Ran)
    running.scheduler.stop()
    running.worker.join(SOON)
    assert running.scheduler.running_since is None, "a pass that is over counts as one that hangs"
    ran = [[int(item.token_ids[0]) for item in items] for items in running.engine.passes]
    assert ran == [[1], *([token] for token in (2, 3) if token not in leaving)]


def test_a_fault_of_ours_is_told_in_its_own_words(running: Running) -> None:
    running.engine.break_with = poison(13, InternalError("a number is not finite"))
    bad = running.submit([1, 13]).outcome
    assert isinstance(bad, InternalError) and bad.message == "a number is not finite"
    assert isinstance(running.submit([1, 2]).outcome, Ran)


def test_an_exception_does_not_poison_what_comes_later(running: Running) -> None:
    running.engine.break_with = poison(13, ValueError())
    assert isinstance(running.submit([13]).outcome, InternalError)
    assert isinstance(running.submit([14]).outcome, Ran)
    assert not running.faults


def test_an_unsound_device_ends_everything_at_once(running: Running) -> None:
    first = held(running, [1])
    waiting = running.submit([2])
    running.engine.break_with = poison(1, DeviceError("an illegal address was read"))
    running.engine.gate.set()
    for one in (first, waiting):
        assert isinstance(one.outcome, Unavailable)
        assert "illegal address" in one.outcome.message
    assert running.failed.wait(SOON)
    assert running.faults[0].exit_code == ExitCode.DEVICE_UNSOUND
    running.worker.join(SOON)
    assert running.engine.closed


def test_a_failed_pass_asks_the_device_whether_it_is_sound(running: Running) -> None:
    running.engine.break_with = poison(1, RuntimeError("some kernel failed"))
    running.engine.unsound = DeviceError("the device no longer answers")
    assert isinstance(running.submit([1]).outcome, Unavailable)
    assert running.failed.wait(SOON)
    assert running.faults[0].reason == "the device no longer answers"


class EndOfThread(BaseException):
    """What no `except Exception` catches."""


def test_a_worker_cannot_die_silently(running: Running) -> None:
    running.engine.break_with = poison(1, EndOfThread("user text"))
    assert isinstance(running.submit([1]).outcome, Unavailable)
    assert running.failed.wait(SOON)
    assert running.faults[0].exit_code == ExitCode.ENGINE_LOST
    assert "EndOfThread" in running.faults[0].reason
    assert "user text" not in running.faults[0].reason


def test_the_watchdog_ends_a_pass_that_does_not_return() -> None:
    now = [0.0]
    running = Running(clock=lambda: now[0])
    running.worker.start()
    watchdog = Watchdog(running.scheduler, limit_seconds=30, worker_alive=running.worker.is_alive)
    stuck = held(running, [1])
    waiting = running.submit([2])
    now[0] = 30.0
    watchdog.look()
    assert not running.faults
    now[0] = 30.1
    watchdog.look()
    for one in (stuck, waiting):
        assert isinstance(one.outcome, Unavailable)
    assert [fault.exit_code for fault in running.faults] == [ExitCode.ENGINE_LOST]
    running.engine.gate.set()
    running.worker.join(SOON)
    assert not running.worker.is_alive()


def test_the_watchdog_counts_each_pass_of_a_failed_batch_on_its_own() -> None:
    now = [0.0]
    running = Running(clock=lambda: now[0])
    running.worker.start()
    watchdog = Watchdog(running.scheduler, limit_seconds=30, worker_alive=lambda: True)
    first = held(running, [1])
    jobs = [running.submit([2]), running.submit([3])]

    def slow(items: Sequence[Item]) -> BaseException | None:
        now[0] += 20
        watchdog.look()
        return RuntimeError() if len(items) > 1 else None

    running.engine.break_with = slow
    running.engine.gate.set()
    assert all(isinstance(one.outcome, Ran) for one in (first, *jobs))
    assert not running.faults
    running.scheduler.stop()
    running.worker.join(SOON)


def test_the_watchdog_notices_a_worker_that_is_gone() -> None:
    running = Running()
    watchdog = Watchdog(running.scheduler, limit_seconds=30, worker_alive=lambda: False)
    waiting = running.submit([1])
    watchdog.start()
    assert isinstance(waiting.outcome, Unavailable)
    watchdog.join(SOON)
    assert running.faults[0].exit_code == ExitCode.ENGINE_LOST


def test_the_watchdog_says_nothing_once_the_end_is_meant() -> None:
    running = Running()
    watchdog = Watchdog(running.scheduler, limit_seconds=0.001, worker_alive=lambda: False)
    watchdog.end()
    watchdog.look()
    watchdog.start()
    watchdog.join(SOON)
    assert not running.faults


def test_what_loading_raises_is_handed_over_and_the_thread_ends() -> None:
    got: list[object] = []

    def load() -> dict[str, FakeEngine]:
        raise CheckpointError("head.pt: bias is missing")

    worker = Worker(Scheduler(QueueLimits(jobs=1, rows=1)), load, got.append)
    worker.start()
    worker.join(SOON)
    assert isinstance(got[0], CheckpointError)


def planned_ahead(running: Running, *, once: bool = False) -> threading.Semaphore:
    """Released each time that the planner has put a plan down. once: it makes no second one."""
    put_down = threading.Semaphore(0)
    peek = running.scheduler.peek

    def noticed(version: int) -> object:
        if version >= 0:
            put_down.release()
            if once:
                return None
        return peek(version)

    running.scheduler.peek = noticed
    return put_down


def test_the_next_pass_is_planned_while_one_runs() -> None:
    now = [0.0]
    running = Running(clock=lambda: now[0])
    put_down = planned_ahead(running)
    running.worker.start()
    first = held(running, [1])
    now[0] += 1
    running.engine.gate.set()
    assert isinstance(first.outcome, Ran)
    second = held(running, [2])
    third = running.submit([3])
    assert put_down.acquire(timeout=SOON)
    fourth = running.submit([4])
    assert put_down.acquire(timeout=SOON)
    running.engine.gate.set()
    assert all(isinstance(one.outcome, Ran) for one in (second, third, fourth))
    running.scheduler.stop()
    running.worker.join(SOON)
    assert [len(items) for items in running.engine.passes] == [1, 1, 2]
    assert [report.planned_ahead for report in running.reports] == [False, False, True]


def test_a_plan_for_another_batch_is_not_used() -> None:
    now = [0.0]
    running = Running(clock=lambda: now[0])
    put_down = planned_ahead(running, once=True)
    running.worker.start()
    first = held(running, [1])
    now[0] += 1
    running.engine.gate.set()
    assert isinstance(first.outcome, Ran)
    second = held(running, [2])
    waited = Waited()
    leaver = running.scheduler.open_job(waited.on_resolved)
    running.scheduler.submit(leaver, running.engine, work_of([3]))
    assert put_down.acquire(timeout=SOON)
    running.scheduler.cancel(leaver)
    stays = running.submit([4])
    running.engine.gate.set()
    assert isinstance(second.outcome, Ran) and isinstance(stays.outcome, Ran)
    ids = [item.token_ids.tolist() for items in running.engine.passes for item in items]
    assert ids == [[1], [2], [4]]
    running.scheduler.stop()
    running.worker.join(SOON)
