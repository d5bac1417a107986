"""Every error that adjudge raises on purpose, drawn once:

    AdjudgeError
    ├── RequestError            the caller's request cannot be answered; never a 5xx
    │   ├── InvalidRequest      422   one or more fields are wrong (a list of details)
    │   ├── UsageError          400   unknown model, unreadable body, over a token limit
    │   ├── AuthenticationError 401 / 403
    │   ├── NotFound            404
    │   ├── MethodNotAllowed    405
    │   ├── RequestTimeout      408   the body did not arrive, or the caller's deadline passed
    │   ├── BodyTooLarge        413
    │   └── UnsupportedMedia    415
    ├── Overloaded              529   the queue is full; try again after `retry_after_ms`
    │   └── RateLimited         429   this caller asks too often
    ├── Unavailable             503   loading, draining, or the device is unsound
    ├── InternalError           500   a fault of ours; the message never holds request text
    │   └── NotFinite                 the model gave a number that no answer may hold
    ├── CheckpointError         a model folder that cannot be loaded (names file and key)
    ├── ConfigError             a flag, variable or file entry that cannot be used
    └── DeviceError             the device cannot run the engine exactly, or is unsound

The HTTP mapping reads `status` and `error_type`; nothing else decides a status code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class AdjudgeError(Exception):
    """Root of the tree. `status` is the HTTP status, `error_type` the wire's word for it."""

    status: int = 500
    error_type: str = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(AdjudgeError):
    """The caller's request cannot be answered as it is; the message says limit, value, remedy."""

    status = 400
    error_type = "api_usage_error"


@dataclass(frozen=True, slots=True)
class Detail:
    """One wrong field, in the shape of the wire's 422 body.

    loc: path from "body" to the field; msg: one sentence; type: a stable word for programs;
    input: the offending value where it is small and safe to echo, else None.
    """

    loc: tuple[str | int, ...]
    msg: str
    type: str
    input: Any = None


class InvalidRequest(RequestError):
    """One or more fields are wrong. Only this error has status 422."""

    status = 422

    def __init__(self, *details: Detail) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, d.loc))}: {d.msg}" for d in details))
        self.details = details


class UsageError(RequestError):
    """The request is well formed but cannot be served: unknown model, over a limit, unreadable."""


class AuthenticationError(RequestError):
    """The key is missing (401) or not accepted (403)."""

    status = 401
    error_type = "authentication_error"

    def __init__(self, message: str, *, status: int = 401) -> None:
        super().__init__(message)
        self.status = status


class NotFound(RequestError):
    status = 404


class MethodNotAllowed(RequestError):
    status = 405


class RequestTimeout(RequestError):
    status = 408


class BodyTooLarge(RequestError):
    status = 413


class UnsupportedMedia(RequestError):
    status = 415


class Overloaded(AdjudgeError):
    """The queue is full; `retry_after_ms` says when to try again."""

    status = 529
    error_type = "overloaded_error"

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class RateLimited(Overloaded):
    """This caller asks more often than it may."""

    status = 429
    error_type = "rate_limit_error"


class Unavailable(AdjudgeError):
    status = 503


class InternalError(AdjudgeError):
    """A fault of ours. The message is safe to send: it never holds text of a request."""


class NotFinite(InternalError):
    """The model gave a number that no answer may hold."""

    def __init__(self) -> None:
        super().__init__("the model produced a number that is not finite; no answer was sent")


class CheckpointError(AdjudgeError):
    """A model folder cannot be loaded; the message names the file and the key."""


class ConfigError(AdjudgeError):
    """A setting cannot be used; the message names it, its origin and what is accepted."""


class DeviceError(AdjudgeError):
    """The device cannot run the engine exactly, or stopped being sound."""

    status = 503
