"""The one thread that owns the engine, and its helper that plans the next pass meanwhile."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from adjudge.errors import DeviceError, InternalError
from adjudge.scheduler.exit_codes import ExitCode
from adjudge.scheduler.scheduler import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adjudge.engine_door import Door
    from adjudge.scheduler.batching import Batch, Part
    from adjudge.scheduler.scheduler import Scheduler

log = logging.getLogger("adjudge.worker")

REST_PER_PLAN = 3
"""The planner rests this many times as long as its last plan took, so it never crowds others."""


class Worker(threading.Thread):
    """Loads the engines, then runs batches until the scheduler says stop.

    Loading happens here so that device handles and graphs belong to the thread that runs them.
    on_loaded: called from this thread with the engines by name, or with what loading raised.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        load: Callable[[], Mapping[str, Door]],
        on_loaded: Callable[[Mapping[str, Door] | BaseException], None],
    ) -> None:
        super().__init__(name="adjudge-worker", daemon=True)
        self._scheduler = scheduler
        self._load = load
        self._on_loaded = on_loaded
        self._planner = Planner(scheduler)

    def run(self) -> None:
        try:
            doors = self._load()
        except BaseException as error:
            self._on_loaded(error)
            return
        self._planner.start()
        self._on_loaded(doors)
        try:
            while (batch := self._scheduler.next_batch()) is not None:
                self._run_batch(batch)
        except DeviceError as error:
            self._scheduler.fail(Fault(error.message, ExitCode.DEVICE_UNSOUND))
        except BaseException as error:
            reason = f"the worker ended with {type(error).__name__} at {where(error)}"
            self._scheduler.fail(Fault(reason, ExitCode.ENGINE_LOST))
        finally:
            for door in doors.values():
                door.close()

    def _run_batch(self, batch: Batch) -> None:
        try:
            plan = self._planner.take(batch.parts)
            planned_ahead = plan is not None
            if plan is None:
                plan = batch.door.prepare(batch.items(share=self._scheduler.share))
            result = batch.door.run(plan)
        except DeviceError:
            raise
        except Exception as error:
            log.error("a pass failed: %s at %s", type(error).__name__, where(error))
            batch.door.health()
            self._run_apart(batch, error)
        else:
            self._scheduler.complete(batch, result, planned_ahead=planned_ahead)

    def _run_apart(self, batch: Batch, error: Exception) -> None:
        """After a failed pass: fail its only job, or find which of its jobs it was."""
        if len(batch.parts) == 1:
            if not isinstance(error, InternalError):
                said = "the engine failed on this request; other requests are not affected"
                error = InternalError(said)
            self._scheduler.fail_batch(batch, error)
            return
        for single in batch.alone():
            if self._scheduler.follow(single):
                self._run_batch(single)


class Planner(threading.Thread):
    """Prepares what would run next while a pass runs. A guess: the worker takes the plan only if
    the batch came out the same, and plans by itself otherwise."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(name="adjudge-planner", daemon=True)
        self._scheduler = scheduler
        self._ready: tuple[tuple[Part, ...], Any] | None = None
        self._rest = threading.Event()

    def run(self) -> None:
        version = -1
        while (found := self._scheduler.peek(version)) is not None:
            version, batch = found
            began = self._scheduler.clock()
            try:
                plan = batch.door.prepare(batch.items(share=self._scheduler.share))
            except Exception as error:
                # The worker will meet the same error and fail the right jobs with it.
                log.debug("planning ahead failed: %s at %s", type(error).__name__, where(error))
                continue
            self._ready = (batch.parts, plan)
            self._rest.wait(REST_PER_PLAN * (self._scheduler.clock() - began))

    def take(self, parts: tuple[Part, ...]) -> Any | None:
        """The plan of exactly these parts, if it is there."""
        ready, self._ready = self._ready, None
        return ready[1] if ready is not None and ready[0] == parts else None


def where(error: BaseException) -> str:
    """File, line and function where an error was raised; its message may hold request text."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    last = frames[-1]
    return f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno} in {last.name}"
