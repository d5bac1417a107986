"""What the server says of itself: alive, ready, and why not."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

import adjudge
from adjudge.errors import AdjudgeError, DeviceError

if TYPE_CHECKING:
    from adjudge.scheduler import Scheduler
    from adjudge.service.engines import Engines


class Health:
    """Readiness of the engines. `draining` is set by whoever stops the server."""

    def __init__(self, engines: Engines, scheduler: Scheduler) -> None:
        self._engines = engines
        self._scheduler = scheduler
        self._began = monotonic()
        self.draining = False

    @property
    def state(self) -> str:
        """ready, draining or failed."""
        if self._scheduler.fault is not None:
            return "failed"
        return "draining" if self.draining else "ready"

    def reason(self) -> str | None:
        """Why the server is not ready."""
        if self._scheduler.fault is not None:
            return self._scheduler.fault.reason
        return "the server is stopping" if self.draining else None

    def report(self, *, details: bool) -> tuple[int, dict[str, Any]]:
        """Status and body of GET /health."""
        body: dict[str, Any] = {"status": self.state}
        ready = self.state == "ready"
        if not ready:
            body["reason"] = self.reason() if details else self.state
            body["detail"] = {"error_type": "internal_error", "message": body["reason"]}
        if details:
            jobs, rows = self._scheduler.pending
            body |= {
                "model": self._engines.first.card.name,
                "random_weights": self._engines.first.card.random_weights,
                "version": adjudge.__version__,
                "uptime_seconds": round(monotonic() - self._began, 3),
                "pending_requests": jobs,
                "pending_tokens": rows,
            }
            try:
                facts = {name: door.health() for name, door in self._engines.doors.items()}
                body |= {"engine": next(iter(facts.values()))}
                if len(facts) > 1:
                    body["engines"] = facts
            except DeviceError as error:
                if self._scheduler.fault is None:  # else it is the cause, and this an effect
                    body |= {"status": "failed", "reason": error.message}
                ready = False
        return (200 if ready else 503), body

    def alive(self) -> tuple[int, dict[str, Any]]:
        """Status and body of GET /health/live: 503 once only a restart can help."""
        failed = self._scheduler.fault is not None
        return (503 if failed else 200), {"status": "failed" if failed else "alive"}


async def deep(health: Health, ask: Any) -> tuple[int, dict[str, Any]]:
    """GET /health?deep=1: the report, and one small request through the whole path.

    ask: awaitable function that answers such a request, or raises AdjudgeError.
    """
    status, body = health.report(details=True)
    if status != 200:
        return status, body
    began = monotonic()
    try:
        await ask()
    except AdjudgeError as error:
        return 503, body | {"status": "failed", "reason": error.message}
    except asyncio.CancelledError:
        raise
    return 200, body | {"deep_ms": round((monotonic() - began) * 1000, 3)}
