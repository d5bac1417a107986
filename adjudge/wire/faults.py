"""Errors on the wire: the one place where an exception becomes a status and a JSON body."""

from __future__ import annotations

from typing import Any

from adjudge.errors import (
    AdjudgeError,
    AuthenticationError,
    InvalidRequest,
    Overloaded,
)


def error_body(exc: AdjudgeError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, JSON body and extra headers of an error.

    422 is `{"detail": [{"loc", "msg", "type", "input"?}]}`; everything else is
    `{"detail": {"error_type", "message"}}`.
    """
    if isinstance(exc, InvalidRequest):
        details: list[dict[str, Any]] = []
        for detail in exc.details:
            entry: dict[str, Any] = {
                "loc": list(detail.loc),
                "msg": detail.msg,
                "type": detail.type,
            }
            if detail.input is not None:
                entry["input"] = detail.input
            details.append(entry)
        return exc.status, {"detail": details}, {}
    headers: dict[str, str] = {}
    if isinstance(exc, Overloaded):
        wait_ms = max(0, exc.retry_after_ms)
        headers = {"retry-after": str(-(-wait_ms // 1000)), "retry-after-ms": str(wait_ms)}
    elif isinstance(exc, AuthenticationError) and exc.status == 401:
        headers = {"www-authenticate": "Bearer"}
    body = {"detail": {"error_type": exc.error_type, "message": exc.message}}
    return exc.status, body, headers
