"""The socket and the HTTP server: bound early, opened late, closed in the right order."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from adjudge.errors import AdjudgeError, ConfigError, RequestTimeout, UsageError
from adjudge.service.exchange import new_request_id
from adjudge.wire import error_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp

BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections (30 s and 60 s), so that they close, not the server
under a request that is already on its way."""

MAX_HEAD_BYTES = 64 << 10
"""Most bytes of a head's address and fields, or of a trailer's fields; and of what may come without
anything being whole."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: the port is taken, and connections are refused.

    Raises ConfigError when the address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"host {host} is not an address of this machine: {error}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise unusable(host, port, error) from None
    return listener


def unusable(host: str, port: int, error: OSError) -> ConfigError:
    """What to tell about an address that cannot be bound or listened on."""
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"port {port} on {host} is in use; stop what listens there, or choose another port"
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"port {port} on {host} needs rights this user lacks; choose 1024 or more"
        )
    return ConfigError(f"{host} port {port} cannot be used: {error.strerror}")


def url_of(listener: socket.socket) -> str:
    """The address in the form that clients take."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpProtocol(HttpToolsProtocol):
    """One connection. What is not HTTP, a head without end and one that stalls are refused in JSON.

    A clock runs while no request is being answered: until the head of the next one is whole once
    the connection is new or a byte of it has come, and as long as a connection may idle after other
    bytes, such as the rest of a body that nobody wanted. uvicorn's own ends at any byte.
    """

    def __init__(self, *given: Any, head_seconds: float, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_seconds = head_seconds
        self._since_progress = 0
        self._in_head = False
        self._field_bytes = 0
        self._head_too_large = False
        self._refusal: AdjudgeError | None = None
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_clock(self._head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._since_progress += len(data)
        super().data_received(data)
        if self.transport.is_closing() or self._refusal is not None:
            return
        if self._since_progress > MAX_HEAD_BYTES:
            self._head_too_large = True
            self.send_400_response("")
        elif self._clock is None and (self.cycle is None or self.cycle.response_complete):
            self._start_clock(self._head_seconds if self._in_head else KEEP_ALIVE_SECONDS)

    def on_message_begin(self) -> None:
        self._since_progress = self._field_bytes = 0
        self._in_head = True
        self._stop_clock()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b":\r\n"))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._since_progress = 0
        self._field_bytes += size
        if self._field_bytes > MAX_HEAD_BYTES:
            self._head_too_large = True
            raise ValueError("the parser ends here, and send_400_response is called")

    def on_headers_complete(self) -> None:
        self._since_progress = self._field_bytes = 0
        self._in_head = False
        self._stop_clock()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_clock()
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._since_progress = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if self._refusal is not None:
            if is_last and not self.transport.is_closing():
                self._send_refusal(self._refusal)
        # Part of the next head came while this request was being answered.
        elif self._in_head and self._clock is None and self.cycle.response_complete:
            self._start_clock(self._head_seconds)

    def send_400_response(self, msg: str) -> None:
        told = "this is not a whole HTTP/1.1 request; check its request line and framing"
        if self._head_too_large:
            told = f"the request's head is over {MAX_HEAD_BYTES} bytes; send less in it"
        self._refuse(UsageError(told))

    def _start_clock(self, seconds: float) -> None:
        self._clock = self.loop.call_later(seconds, self._late)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _late(self) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            self._refuse(
                RequestTimeout(
                    f"the request's head was not whole within {self._head_seconds:g} s; send it "
                    "in one piece"
                )
            )
        else:
            self.transport.close()

    def _refuse(self, error: AdjudgeError) -> None:
        """At once, or after the answers to what came whole before."""
        unanswered = self.cycle is not None and not self.cycle.response_complete
        if unanswered and self.cycle.more_body and self.pipeline:
            self.pipeline.popleft()  # the newest: its body is what is refused
        elif not unanswered or self.cycle.more_body:
            self._send_refusal(error)
            return
        self._refusal = error
        self._stop_clock()

    def _send_refusal(self, error: AdjudgeError) -> None:
        status, body, _ = error_body(error)
        content = msgspec.json.encode(body)
        number = new_request_id()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(content)}",
            f"x-request-id: {number}",
            f"x-typesafe-request-id: {number}",
            "connection: close",
        )
        self.transport.write("\r\n".join([*head, "", ""]).encode() + content)
        self.transport.close()


class HttpServer(uvicorn.Server):
    """uvicorn on our socket, with signals left to the lifecycle."""

    def __init__(self, app: ASGIApp, *, grace_seconds: float, head_seconds: float) -> None:
        connection = partial(HttpProtocol, head_seconds=head_seconds)
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                backlog=BACKLOG,
                http=cast("type[asyncio.Protocol]", connection),
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(grace_seconds)),
                ws="none",
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def finish(self, grace_seconds: float | None = None) -> None:
        """Accept no more connections and end when those there are done, or after the grace."""
        if grace_seconds is not None:
            self.config.timeout_graceful_shutdown = max(1, round(grace_seconds))
        self.should_exit = True
