"""A request that was admitted: from its whole body to its outcome, one job of the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from adjudge.errors import RequestTimeout
from adjudge.scheduler import Cancelled, Job, Ran

if TYPE_CHECKING:
    from adjudge.scheduler import Scheduler
    from adjudge.service.aside import Aside
    from adjudge.service.exchange import Exchange

T = TypeVar("T")

INLINE_BYTES = 16 << 10
"""Work up to the cost of a body of this size is done on the event loop: a thread would cost more.
"""


class Admitted:
    """Opens a job and holds it while in its `with` block. The job ends early when the client
    leaves, the deadline passes or the engine stops; the step under way is left then.

    aside_for: where work of a cost is done; deadline: on the scheduler's clock, in seconds.
    Opening raises Unavailable, Overloaded.
    """

    def __init__(
        self,
        exchange: Exchange,
        scheduler: Scheduler,
        aside_for: Callable[[int], Aside],
        deadline: float | None,
    ) -> None:
        self._scheduler = scheduler
        self._aside_for = aside_for
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._resolved: asyncio.Future[None] = self._loop.create_future()
        self.job = scheduler.open_job(self._on_resolved, deadline=deadline)
        self._watch = asyncio.ensure_future(self._until_left(exchange))
        self._timer = None
        if deadline is not None:
            left = max(0.0, deadline - scheduler.clock())
            self._timer = self._loop.call_later(left, scheduler.cancel, self.job, late())

    def __enter__(self) -> Admitted:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watch.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._scheduler.cancel(self.job)

    async def step(self, cost: int, work: Callable[..., T], *arguments: Any) -> T:
        """Do small work here and large work on a thread, so that nobody waits for it.

        cost: in bytes of a plain body. Raises what the job ended with, if that comes first.
        """
        if self._deadline is not None and self._scheduler.clock() >= self._deadline:
            self._scheduler.cancel(self.job, late())
        if cost <= INLINE_BYTES:
            return self._do(work, *arguments)
        begun = self._aside_for(cost).submit(self._do, work, *arguments)
        future: asyncio.Future[T] = asyncio.wrap_future(begun)
        try:
            await asyncio.wait((future, self._resolved), return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                self._ran()
            return await future
        finally:
            future.cancel()

    def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        if self.job.outcome is not None:
            self._ran()
        return work(*arguments)

    async def ran(self) -> Ran:
        """Wait for the submitted job. Raises what it ended with unless it ran."""
        await self._resolved
        return self._ran()

    def _ran(self) -> Ran:
        outcome = self.job.outcome
        if isinstance(outcome, Ran):
            return outcome
        # One error may end many jobs: without its traceback it keeps none of them alive.
        raise (outcome or Cancelled("the job was left")).with_traceback(None)

    async def _until_left(self, exchange: Exchange) -> None:
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        self._scheduler.cancel(self.job)

    def _on_resolved(self, job: Job) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._resolved.done():
            self._resolved.set_result(None)


def late() -> RequestTimeout:
    """What a request is told whose deadline passed."""
    return RequestTimeout(
        "the request's deadline passed before its answer was there; send a later x-deadline-ms, or "
        "try again when fewer requests wait"
    )
