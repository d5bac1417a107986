"""One HTTP exchange: what came with the request's head, and what is noted on the way."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from itertools import count
from secrets import token_hex
from typing import Any

from starlette.types import Receive, Scope

from adjudge.errors import UsageError

OWN = "adjudge.own"
"""Key of a scope that marks the server's own requests."""

_OURS = token_hex(5)
_NUMBER = count(1)
_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(slots=True)
class Exchange:
    """headers: names in lower case. timings: name -> seconds, for server-timing and the log;
    facts: counts for the log, never text of the request. trusted: the caller may see details;
    own: the server asks itself (only the server can write that into a scope)."""

    method: str
    path: str
    headers: dict[str, str]
    scope: Scope
    receive: Receive
    request_id: str
    traceparent: str | None
    began: float = field(default_factory=time.monotonic)
    route: str = ""
    trusted: bool = True
    own: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, scope: Scope, receive: Receive) -> Exchange:
        """Read the head. A request id or traceparent that is not well formed is replaced, or
        dropped: it would go into logs and headers."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        given = headers.get("x-request-id", "")
        trace = headers.get("traceparent", "")
        return cls(
            method=scope["method"],
            path=scope["path"],
            headers=headers,
            scope=scope,
            receive=receive,
            request_id=given if _ID.fullmatch(given) else new_request_id(),
            traceparent=trace if _TRACE.fullmatch(trace) else None,
            own=scope.get(OWN) is True,
        )

    def reply_headers(self) -> dict[str, str]:
        """Headers that every response carries."""
        headers = {"x-request-id": self.request_id, "x-typesafe-request-id": self.request_id}
        if self.traceparent is not None:
            headers["traceparent"] = self.traceparent
        if self.timings:
            headers["server-timing"] = ", ".join(
                f"{name};dur={seconds * 1000:.3f}" for name, seconds in self.timings.items()
            )
        return headers

    def deadline(self, default_ms: int | None) -> float | None:
        """When the answer is no longer wanted, on the clock of `began`: it runs from the request's
        head on. Raises UsageError."""
        given = self.headers.get("x-deadline-ms")
        if given is None:
            limit_ms = default_ms
        elif re.fullmatch(r"[0-9]{1,9}", given) and int(given) > 0:
            limit_ms = int(given)
        else:
            raise UsageError(
                "x-deadline-ms takes a whole number of milliseconds from 1 to 999999999"
            )
        if limit_ms is None:
            return None
        return self.began + limit_ms / 1000


def new_request_id() -> str:
    """An id of this process's own."""
    return f"{_OURS}-{next(_NUMBER):x}"
