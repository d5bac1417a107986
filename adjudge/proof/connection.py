"""A keep-alive HTTP/1.1 connection for load: one request at a time, as little work as possible."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from adjudge.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Reply:
    """timing: the server-timing header, empty where the server sent none."""

    status: int
    body: bytes
    timing: bytes


@dataclass(frozen=True, slots=True)
class Target:
    """A server, from its URL: where to connect, and the head of every request to it."""

    host: str
    port: int
    tls: bool
    prefix: str
    authority: str
    key: str | None = None

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Target:
        """From http[s]://host[:port][/prefix]. Raises ConfigError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the server is {url!r}; it takes an http:// or https:// address")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, parts.path.rstrip("/"), parts.netloc, key)

    def message(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A whole request, ready to be sent."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"host: {self.authority}"]
        if self.key is not None:
            lines.append(f"authorization: Bearer {self.key}")
        if body:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


class Connection(asyncio.Protocol):
    """Sends one message, waits for its reply, and is ready for the next."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._timing = b""

    @classmethod
    async def open(cls, target: Target) -> Connection:
        """A new connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if target.tls else None
        _, connection = await loop.create_connection(cls, target.host, target.port, ssl=context)
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, message: bytes, timeout_s: float) -> Reply:
        """The reply to a message. Raises OSError when the connection breaks, or in time none came;
        the connection is closed then."""
        if self._transport is None or self._waiting is not None:
            raise ConnectionError("the connection is closed, or a reply is outstanding")
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Reply] = loop.create_future()
        self._waiting = waiting
        timer = loop.call_later(timeout_s, self._fail, TimeoutError(f"no reply in {timeout_s} s"))
        self._transport.write(message)
        try:
            return await waiting
        finally:
            timer.cancel()
            self._waiting = None

    def add(self, piece: bytes) -> None:
        """More of the message that `send` began. Nothing, when the connection is closed."""
        if self._transport is not None:
            self._transport.write(piece)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail(ConnectionError(f"connection closed by the server ({error or 'no error'})"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"server-timing":
            self._timing = value

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        reply = Reply(self._parser.get_status_code(), b"".join(self._parts), self._timing)
        self._parts.clear()
        self._timing = b""
        if reply.status < 200:  # word on the way to the reply: 100 Continue
            return
        if not self._parser.should_keep_alive():
            self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(reply)

    def _fail(self, error: OSError) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
            self.close()
