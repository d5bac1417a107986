"""A second pair of eyes on the worker: a pass that does not return, a worker that is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from adjudge.scheduler.exit_codes import ExitCode
from adjudge.scheduler.scheduler import Fault

if TYPE_CHECKING:
    from adjudge.scheduler.scheduler import Scheduler

CHECKS_PER_LIMIT = 8
LONGEST_WAIT_SECONDS = 0.5


class Watchdog(threading.Thread):
    """Declares a fault when a pass runs longer than `limit_seconds`, or the worker has ended."""

    def __init__(
        self, scheduler: Scheduler, *, limit_seconds: float, worker_alive: Callable[[], bool]
    ) -> None:
        super().__init__(name="adjudge-watchdog", daemon=True)
        self._scheduler = scheduler
        self._limit_seconds = limit_seconds
        self._worker_alive = worker_alive
        self._over = threading.Event()

    def run(self) -> None:
        wait = min(self._limit_seconds / CHECKS_PER_LIMIT, LONGEST_WAIT_SECONDS)
        while not self._over.wait(wait) and self._scheduler.fault is None:
            self.look()

    def look(self) -> None:
        """One check."""
        began = self._scheduler.running_since
        if began is not None and self._scheduler.clock() - began > self._limit_seconds:
            reason = f"a forward pass did not return within {self._limit_seconds:g} s"
            self._scheduler.fail(Fault(reason, ExitCode.ENGINE_LOST))
        elif not self._worker_alive() and not self._over.is_set():
            self._scheduler.fail(Fault("the worker thread ended", ExitCode.ENGINE_LOST))

    def end(self) -> None:
        """Stop looking: the worker is about to end on purpose."""
        self._over.set()
