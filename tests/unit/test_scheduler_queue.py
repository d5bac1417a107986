"""The queue: order, budget, splits, fairness, admission, and the one outcome of every job."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.engine_door import Pass
from adjudge.errors import AdjudgeError, InternalError, Overloaded, RequestTimeout, Unavailable
from adjudge.forest import count_rows
from adjudge.scheduler import Batch, Cancelled, ExitCode, Fault, Job, QueueLimits, Ran, Scheduler
from tests.fake_engine import FakeEngine, logit, work_of

LIMITS = QueueLimits(jobs=100, rows=1_000_000)


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A scheduler with the test as its worker, and every outcome on record."""

    def __init__(self, *, max_rows: int = 100, limits: QueueLimits = LIMITS, share: bool = True):
        self.clock = Clock()
        self.faults: list[Fault] = []
        self.scheduler = Scheduler(
            limits, share=share, clock=self.clock, on_fault=self.faults.append
        )
        self.door = FakeEngine(max_rows=max_rows)
        self.resolved: list[Job] = []

    def open(self, *, deadline: float | None = None) -> Job:
        return self.scheduler.open_job(self.resolved.append, deadline=deadline)

    def submit(self, *prompts: Sequence[int], deadline: float | None = None) -> Job:
        job = self.open(deadline=deadline)
        self.scheduler.submit(job, self.door, work_of(*prompts))
        return job

    def take(self) -> Batch:
        assert self.scheduler._small or self.scheduler._large, "nothing waits"
        batch = self.scheduler.next_batch()
        assert batch is not None
        assert batch.door is self.door
        return batch

    def finish(self, batch: Batch) -> None:
        items = batch.items(share=self.scheduler.share)
        logits = [np.array([logit(item.token_ids)], dtype=np.float32) for item in items]
        rows = count_rows([item.token_ids for item in items])
        self.scheduler.complete(batch, Pass(logits, rows=rows, padded_rows=rows))

    def run_one(self) -> list[Job]:
        batch = self.take()
        self.finish(batch)
        return [part.job for part in batch.parts]


def prompt(start: int, length: int) -> list[int]:
    """A prompt that shares nothing with one of another start."""
    return [start * 1000 + place for place in range(length)]


def ran(job: Job) -> Ran:
    assert isinstance(job.outcome, Ran)
    return job.outcome


def test_a_busy_engine_next_takes_all_that_fits_in_order() -> None:
    desk = Desk(max_rows=100)
    jobs = [desk.submit(prompt(i, 40)) for i in range(5)]
    assert [desk.run_one(), desk.run_one(), desk.run_one()] == [jobs[:2], jobs[2:4], jobs[4:]]
    assert desk.resolved == jobs


@pytest.mark.parametrize("share", [True, False])
def test_first_in_first_out_even_where_a_later_job_would_fit(share: bool) -> None:
    desk = Desk(max_rows=100, share=share)
    first, wide, narrow = (desk.submit(prompt(i, n)) for i, n in enumerate((60, 60, 10)))
    assert desk.run_one() == [first]
    assert desk.run_one() == [wide, narrow]


def test_the_budget_counts_rows_after_sharing() -> None:
    state = prompt(1, 80)
    desk = Desk(max_rows=100)
    jobs = [desk.submit([*state, 5 + i], [*state, 50 + i]) for i in range(9)]
    assert desk.run_one() == jobs
    apart = Desk(max_rows=100, share=False)
    jobs = [apart.submit([*state, 5 + i], [*state, 50 + i]) for i in range(9)]
    assert apart.run_one() == jobs[:1]


def test_without_sharing_every_job_has_a_scope_of_its_own() -> None:
    for share, scopes in ((True, [0, 0, 0]), (False, [0, 0, 1])):
        desk = Desk(share=share)
        desk.submit([1, 2], [1, 3])
        desk.submit([1, 2])
        assert [item.scope for item in desk.take().items(share=share)] == scopes


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=6),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_every_pass_fits_and_every_job_gets_its_own_logits(
    jobs: list[list[list[int]]], share: bool
) -> None:
    desk = Desk(max_rows=14, share=share)
    submitted = [desk.submit(*prompts) for prompts in jobs]
    passes = 0
    while len(desk.resolved) < len(jobs):
        batch = desk.take()
        by_scope: dict[int, list[np.ndarray]] = {}
        for item in batch.items(share=share):
            by_scope.setdefault(item.scope, []).append(item.token_ids)
        assert sum(map(count_rows, by_scope.values())) <= 14
        desk.finish(batch)
        passes += 1
    assert passes <= sum(map(len, jobs))
    for job, prompts in zip(submitted, jobs, strict=True):
        wanted = [logit(np.array(ids, dtype=np.int32)) for ids in prompts]
        assert [float(one[0]) for one in ran(job).logits] == np.float32(wanted).tolist()


def test_a_large_job_is_split_and_put_together_again() -> None:
    desk = Desk(max_rows=100)
    prompts = [prompt(i, 40) for i in range(7)]
    job = desk.submit(*prompts)
    for _ in range(3):
        assert desk.run_one() == [job]
        assert job.outcome is None
    desk.run_one()
    assert ran(job).num_passes == 4
    wanted = [logit(np.array(ids, dtype=np.int32)) for ids in prompts]
    assert [float(one[0]) for one in ran(job).logits] == np.float32(wanted).tolist()


def test_a_job_reports_the_longest_beginning_read_from_a_state_over_its_passes() -> None:
    desk = Desk(max_rows=100)
    small = desk.submit(prompt(1, 40))
    desk.submit(prompt(2, 40), prompt(3, 30))
    large = desk.submit(*(prompt(10 + n, 60) for n in range(2)))
    hits = {1: 5, 2: 0, 3: 0, 10: 7, 11: 3}
    while any(job.outcome is None for job in (small, large)):
        batch = desk.take()
        items = batch.items(share=True)
        found = tuple(hits[int(item.token_ids[0]) // 1000] for item in items)
        done = Pass([np.zeros(1, np.float32)] * len(items), 100, 100, sum(found), found)
        desk.scheduler.complete(batch, done)
    reported = [job.outcome.hit_tokens for job in desk.resolved if isinstance(job.outcome, Ran)]
    assert sorted(reported) == [0, 5, 7]
    assert isinstance(small.outcome, Ran) and small.outcome.hit_tokens == 5
    assert isinstance(large.outcome, Ran) and large.outcome.hit_tokens == 7


def test_small_jobs_pass_between_the_parts_of_a_large_one_and_neither_starves() -> None:
    desk = Desk(max_rows=100)
    large = desk.submit(*(prompt(i, 60) for i in range(4)))
    small = [desk.submit(prompt(10 + i, 90)) for i in range(6)]
    order = [desk.run_one() for _ in range(9)]
    assert order[:8] == [
        [large], [small[0]], [large], [small[1]], [large], [small[2]], [large], [small[3]],
    ]  # fmt: skip
    assert large.outcome is not None
    assert order[8] == [small[4]]


def test_the_last_part_of_a_large_job_is_filled_up_with_small_jobs() -> None:
    desk = Desk(max_rows=100)
    large = desk.submit(prompt(0, 60), prompt(1, 60))
    assert desk.run_one() == [large]
    small = desk.submit(prompt(2, 30))
    assert desk.run_one() == [small]
    late = desk.submit(prompt(3, 30))
    assert desk.run_one() == [large, late]


def test_passes_never_mix_engines_and_the_oldest_decides() -> None:
    desk = Desk()
    other = FakeEngine(max_rows=100)
    first, third = desk.submit(prompt(0, 10)), desk.submit(prompt(2, 10))
    second = desk.open()
    desk.scheduler.submit(second, other, work_of(prompt(1, 10)))
    assert desk.run_one() == [first, third]
    batch = desk.scheduler.next_batch()
    assert batch is not None and batch.door is other


def test_cancelled_before_dispatch_never_runs() -> None:
    desk = Desk(max_rows=50)
    kept, left, last = (desk.submit(prompt(i, 20)) for i in range(3))
    assert desk.scheduler.cancel(left)
    assert desk.run_one() == [kept, last]
    assert isinstance(left.outcome, Cancelled)


def test_cancelled_between_the_parts_of_a_split_runs_no_further() -> None:
    desk = Desk(max_rows=100)
    large = desk.submit(*(prompt(i, 60) for i in range(4)))
    desk.run_one()
    desk.scheduler.cancel(large)
    small = desk.submit(prompt(9, 5))
    assert desk.run_one() == [small]


def test_cancelled_while_it_runs_runs_on_and_its_result_is_dropped() -> None:
    desk = Desk()
    job = desk.submit(prompt(0, 10))
    batch = desk.take()
    assert desk.scheduler.cancel(job)
    desk.finish(batch)
    assert isinstance(job.outcome, Cancelled)
    assert desk.resolved == [job]
    assert desk.scheduler.pending == (0, 0)


def test_a_late_job_is_dropped_before_dispatch() -> None:
    desk = Desk()
    late = desk.submit(prompt(0, 10), deadline=desk.clock.now + 1)
    timely = desk.submit(prompt(1, 10), deadline=desk.clock.now + 3)
    desk.clock.now += 2
    assert desk.run_one() == [timely]
    assert isinstance(late.outcome, RequestTimeout)


def test_a_job_resolves_once_whoever_is_first() -> None:
    desk = Desk()
    job = desk.submit(prompt(0, 10))
    batch = desk.take()
    start = threading.Barrier(3)
    wins: list[bool] = []

    def cancel() -> None:
        start.wait()
        wins.append(desk.scheduler.cancel(job))

    threads = [threading.Thread(target=cancel) for _ in range(2)]
    for thread in threads:
        thread.start()
    start.wait()
    desk.finish(batch)
    for thread in threads:
        thread.join()
    assert sum(wins) <= 1
    assert desk.resolved == [job]
    assert desk.scheduler.pending == (0, 0)


def test_a_failed_pass_fails_its_jobs_only() -> None:
    desk = Desk(max_rows=50)
    first, second = desk.submit(prompt(0, 40)), desk.submit(prompt(1, 40))
    desk.scheduler.fail_batch(desk.take(), InternalError("broken"))
    assert isinstance(first.outcome, InternalError)
    assert desk.run_one() == [second]
    assert ran(second)


def test_too_many_jobs_are_refused_with_the_time_to_come_back() -> None:
    desk = Desk(limits=QueueLimits(jobs=2, rows=1000))
    desk.submit(prompt(0, 10))
    held = desk.open()
    with pytest.raises(Overloaded, match=r"2 requests .* limit is 2") as refused:
        desk.open()
    assert refused.value.retry_after_ms > 0
    with pytest.raises(Overloaded):
        desk.scheduler.check_open()
    desk.scheduler.cancel(held)
    desk.scheduler.check_open()
    desk.open()


def test_too_many_tokens_are_refused_through_the_jobs_outcome() -> None:
    desk = Desk(limits=QueueLimits(jobs=10, rows=100))
    first = desk.submit(prompt(0, 90))
    second = desk.submit(prompt(1, 90))
    assert isinstance(second.outcome, Overloaded)
    assert desk.resolved == [second]
    assert desk.run_one() == [first]
    assert desk.scheduler.pending == (0, 0)


def test_a_job_over_the_limit_is_accepted_when_it_waits_for_nobody() -> None:
    desk = Desk(limits=QueueLimits(jobs=10, rows=100))
    job = desk.submit(prompt(0, 90), prompt(1, 90))
    assert job.outcome is None
    assert desk.run_one() == [job]


def test_the_time_to_come_back_follows_the_engines_speed() -> None:
    desk = Desk(max_rows=1000, limits=QueueLimits(jobs=10, rows=2000))
    desk.submit(prompt(0, 1000))
    batch = desk.take()
    desk.clock.now += 1
    desk.finish(batch)
    desk.submit(prompt(0, 1000)), desk.submit(prompt(1, 900))
    refused = desk.submit(prompt(2, 200)).outcome
    assert isinstance(refused, Overloaded)
    assert 900 <= refused.retry_after_ms <= 1000


def test_many_prompt_tokens_weigh_even_where_they_share_all_rows() -> None:
    desk = Desk(max_rows=1000)
    desk.submit(*([prompt(0, 640)] * 10))
    assert desk.scheduler.pending == (1, 640 + 100)


def test_closed_refuses_new_jobs_and_finishes_the_accepted() -> None:
    desk = Desk()
    job, opened = desk.submit(prompt(0, 10)), desk.open()
    desk.scheduler.close("draining")
    with pytest.raises(Unavailable, match="draining"):
        desk.open()
    desk.scheduler.submit(opened, desk.door, work_of(prompt(1, 10)))
    assert desk.run_one() == [job, opened]


def test_a_fault_ends_everything_pending_at_once() -> None:
    desk = Desk(max_rows=50)
    running, waiting, opened = desk.submit(prompt(0, 40)), desk.submit(prompt(1, 40)), desk.open()
    batch = desk.take()
    fault = Fault("the device is gone", ExitCode.DEVICE_UNSOUND)
    desk.scheduler.fail(fault)
    desk.scheduler.fail(replace(fault, reason="said twice"))
    for job in (running, waiting, opened):
        assert isinstance(job.outcome, Unavailable)
        assert "device is gone" in job.outcome.message
    with pytest.raises(Unavailable, match="device is gone"):
        desk.open()
    assert desk.faults == [fault]
    assert desk.scheduler.next_batch() is None
    desk.finish(batch)
    assert desk.resolved == [running, waiting, opened]


def test_fail_pending_says_how_many_were_cut() -> None:
    desk = Desk()
    desk.submit(prompt(0, 10)), desk.submit(prompt(1, 10))
    desk.run_one()
    desk.submit(prompt(2, 10))
    cut: AdjudgeError = Unavailable("drain budget")
    assert desk.scheduler.fail_pending(cut) == 1
    assert desk.scheduler.fail_pending(cut) == 0
