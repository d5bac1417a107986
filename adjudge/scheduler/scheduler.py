"""The queue between callers and the worker: the one lock, and the only writer of job state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from adjudge.errors import AdjudgeError, RequestTimeout, Unavailable
from adjudge.scheduler.admission import Admission, QueueLimits
from adjudge.scheduler.batching import Batch, choose
from adjudge.scheduler.job import Cancelled, Job, Outcome, Ran

if TYPE_CHECKING:
    from adjudge.engine_door import Door, Pass, Work

PLAN_AHEAD_SECONDS = 0.002
"""Passes shorter than this are not planned ahead: waking the planner would cost more."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the engine cannot go on, and the process's exit code for it."""

    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class PassReport:
    """One finished pass, for metrics."""

    num_jobs: int
    num_prompts: int
    rows: int
    padded_rows: int
    reused_rows: int
    seconds: float
    planned_ahead: bool


class Scheduler:
    """Thread-safe. Times are seconds of `clock`.

    share: whether jobs of one pass may share equal prefixes. on_pass: called by the worker thread
    after each pass; on_fault: called once, from the thread that found the fault.
    """

    def __init__(
        self,
        limits: QueueLimits,
        *,
        share: bool = True,
        clock: Callable[[], float] = time.monotonic,
        on_pass: Callable[[PassReport], None] = lambda report: None,
        on_fault: Callable[[Fault], None] = lambda fault: None,
    ) -> None:
        self.clock = clock
        self.share = share
        self._on_pass = on_pass
        self._on_fault = on_fault
        self._lock = threading.Lock()
        self._work_arrived = threading.Condition(self._lock)
        self._plan_wanted = threading.Condition(self._lock)
        self._admission = Admission(limits)
        self._open: dict[Job, None] = {}
        self._small: dict[Job, None] = {}
        self._large: dict[Job, None] = {}
        self._last_was_large = False
        self._running_since: float | None = None
        self._last_pass_seconds = 0.0
        self._version = 0
        self._closed: str | None = None
        self._stopped = False
        self.fault: Fault | None = None

    # -- callers

    def check_open(self) -> None:
        """Raise Unavailable or Overloaded if a job would be refused now, whatever it is."""
        with self._lock:
            self._refuse_if_closed()
            self._admission.enter()
            self._admission.leave(0)

    def open_job(self, on_resolved: Callable[[Job], None], *, deadline: float | None = None) -> Job:
        """Admit a job whose work is still being made. Raises Unavailable, Overloaded."""
        job = Job(on_resolved, deadline)
        with self._lock:
            self._refuse_if_closed()
            self._admission.enter()
            self._open[job] = None
        return job

    def submit(self, job: Job, door: Door, work: Work) -> None:
        """Queue an open job's work, or resolve the job with Overloaded. A job that was resolved
        meanwhile stays as it is."""
        job.attach(door, work)
        try:
            with self._lock:
                if job.outcome is not None:
                    return
                self._admission.add(job.weight)
                job.counted = job.weight
                job.submitted = self.clock()
                (self._large if job.is_large else self._small)[job] = None
                self._version += 1
                self._work_arrived.notify()
                if self._plans_ahead():
                    self._plan_wanted.notify()
        except AdjudgeError as refused:
            self._resolve([job], refused)

    def cancel(self, job: Job, reason: AdjudgeError | None = None) -> bool:
        """Resolve a job that nobody waits for. False if it was resolved already. What is running
        runs on; its result is dropped."""
        return self._resolve([job], reason or Cancelled("the caller left")) == 1

    @property
    def pending(self) -> tuple[int, int]:
        """Jobs accepted and not yet resolved, and their weight in rows."""
        with self._lock:
            return self._admission.jobs, self._admission.weight

    # -- the worker

    def next_batch(self) -> Batch | None:
        """Wait for work and take it. None: stop, there will be no more."""
        while True:
            with self._lock:
                while not (self._small or self._large or self._ended):
                    self._work_arrived.wait()
                if self._ended:
                    return None
                small, large = self._waiting()
                last_was_large = self._last_was_large
            now = self.clock()
            late = [job for job in (*small, *large) if job.deadline and job.deadline <= now]
            if late:
                self._resolve(late, _late())
                continue
            batch = choose(small, large, last_was_large=last_was_large, share=self.share)
            if batch is not None and (batch := self._dispatch(batch)) is not None:
                return batch

    def follow(self, batch: Batch) -> bool:
        """The running pass is over and this one follows at once, unless nobody waits for it any
        more: then False, and nothing runs."""
        with self._lock:
            wanted = any(part.job.outcome is None for part in batch.parts)
            self._running_since = self.clock() if wanted else None
            return wanted

    def complete(self, batch: Batch, result: Pass, *, planned_ahead: bool = False) -> None:
        """Hand a pass's logits to its jobs; those that have all their logits are resolved."""
        logits, hits = iter(result.logits), iter(result.hit_tokens)
        with self._lock:
            began = self._running_since
            seconds = self.clock() - began if began is not None else 0.0
            self._running_since = None
            self._last_pass_seconds = seconds
            self._admission.learn(result.rows, seconds)
            for part in batch.parts:
                part.job.logits.extend(islice(logits, part.stop - part.first))
                part.job.run_seconds += seconds
                part.job.num_passes += 1
                longest = max(islice(hits, part.stop - part.first), default=0)
                part.job.hit_tokens = max(part.job.hit_tokens, longest)
        for part in batch.parts:
            if part.stop == part.job.num_prompts:
                self._resolve([part.job], _ran(part.job))
        self._on_pass(
            PassReport(
                num_jobs=len(batch.parts),
                num_prompts=sum(part.stop - part.first for part in batch.parts),
                rows=result.rows,
                padded_rows=result.padded_rows,
                reused_rows=result.reused_rows,
                seconds=seconds,
                planned_ahead=planned_ahead,
            )
        )

    def fail_batch(self, batch: Batch, error: AdjudgeError) -> None:
        """Resolve the jobs of a pass that failed, and only those."""
        with self._lock:
            self._running_since = None
        self._resolve([part.job for part in batch.parts], error)

    # -- planning ahead

    def peek(self, known_version: int) -> tuple[int, Batch] | None:
        """Wait until a pass is running and something new waits; what would run next, if nothing
        else came. None: stop."""
        while True:
            with self._lock:
                while not self._ended and not (
                    self._plans_ahead()
                    and self._version != known_version
                    and (self._small or self._large)
                ):
                    self._plan_wanted.wait()
                if self._ended:
                    return None
                version, last_was_large = self._version, self._last_was_large
                small, large = self._waiting()
            batch = choose(small, large, last_was_large=last_was_large, share=self.share)
            if batch is not None:
                return version, batch

    # -- life

    def close(self, reason: str) -> None:
        """Accept no more jobs; those accepted go on."""
        with self._lock:
            self._closed = reason

    def fail_pending(self, error: AdjudgeError) -> int:
        """Resolve everything accepted and not yet resolved. Returns how many that were."""
        with self._lock:
            pending = [*self._open]
        return self._resolve(pending, error)

    def fail(self, fault: Fault) -> None:
        """The engine cannot go on: everything pending ends now, nothing is accepted any more."""
        with self._lock:
            if self.fault is not None:
                return
            self.fault = fault
            self._work_arrived.notify_all()
            self._plan_wanted.notify_all()
        self.fail_pending(Unavailable(f"the engine stopped: {fault.reason}"))
        self._on_fault(fault)

    def stop(self) -> None:
        """Let the worker end after the running pass. Call after the last job."""
        with self._lock:
            self._stopped = True
            self._closed = self._closed or "stopped"
            self._work_arrived.notify_all()
            self._plan_wanted.notify_all()

    @property
    def running_since(self) -> float | None:
        """When the running pass began, or None."""
        with self._lock:
            return self._running_since

    # -- under the lock

    @property
    def _ended(self) -> bool:
        return self._stopped or self.fault is not None

    def _refuse_if_closed(self) -> None:
        if self.fault is not None:
            raise Unavailable(f"the engine stopped: {self.fault.reason}")
        if self._closed is not None:
            raise Unavailable(f"the server takes no more requests: {self._closed}")

    def _plans_ahead(self) -> bool:
        return self._running_since is not None and self._last_pass_seconds >= PLAN_AHEAD_SECONDS

    def _waiting(self) -> tuple[list[Job], list[Job]]:
        return list(self._small), list(self._large)

    def _settle(self, job: Job, outcome: Outcome) -> bool:
        """Give a job its outcome, once. True for the caller that did."""
        if job.outcome is not None:
            return False
        job.outcome = outcome
        self._admission.leave(job.counted)
        self._version += 1
        for place in (self._open, self._small, self._large):
            place.pop(job, None)
        return True

    # -- taking the lock

    def _dispatch(self, chosen: Batch) -> Batch | None:
        """Take a chosen batch off the queue, less the jobs that were resolved since."""
        with self._lock:
            parts = tuple(part for part in chosen.parts if part.job.outcome is None)
            if not parts or self._ended:
                return None
            now = self.clock()
            self._running_since = now
            self._last_was_large = chosen.large
            self._version += 1
            for part in parts:
                job = part.job
                job.next_prompt = part.stop
                if part.first == 0:
                    job.dispatched = now
                if part.stop == job.num_prompts:
                    self._small.pop(job, None)
                    self._large.pop(job, None)
            if self._plans_ahead() and (self._small or self._large):
                self._plan_wanted.notify()
            return chosen if len(parts) == len(chosen.parts) else replace(chosen, parts=parts)

    def _resolve(self, jobs: Iterable[Job], outcome: Outcome) -> int:
        with self._lock:
            settled = [job for job in jobs if self._settle(job, outcome)]
        for job in settled:
            job.on_resolved(job)
        return len(settled)


def _ran(job: Job) -> Ran:
    queue_seconds = job.dispatched - job.submitted
    return Ran(job.logits, queue_seconds, job.run_seconds, job.num_passes, job.hit_tokens)


def _late() -> RequestTimeout:
    return RequestTimeout(
        "the request's deadline passed before it could run; send a later x-deadline-ms, or try "
        "again when fewer requests wait"
    )
