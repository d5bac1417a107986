"""From an HTTP body to the JSON of a request: media types, arrival, size, parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from adjudge.errors import Overloaded, RequestTimeout, UnsupportedMedia, UsageError
from adjudge.scheduler import Cancelled
from adjudge.service.compression import decode, too_large
from adjudge.service.exchange import Exchange

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

JSON = "application/json"
MULTIPART = "multipart/form-data"
MAX_PARTS = 257
UPLOADS_AT_ONCE = 64
"""Bodies of the largest size that may be held at a time, over all connections."""
KEPT_BYTES = 256 << 20
"""Most bytes of bodies whose requests are in progress, or UPLOADS_AT_ONCE of the largest size."""


@dataclass(frozen=True, slots=True)
class Body:
    """json: the request's JSON text; parts: name -> bytes of the other parts of a multipart;
    size: bytes of all of it, decoded."""

    json: bytes
    parts: Mapping[str, bytes] = field(default_factory=dict)
    size: int = field(default=0, compare=False)


class BodyReader:
    """Reads whole bodies, each within a size and a time, all of them within a common size."""

    def __init__(self, *, max_bytes: int, timeout_seconds: float) -> None:
        self.max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self._held_bytes = 0
        self._kept_bytes = 0

    async def read(self, exchange: Exchange, deadline: float | None = None) -> Body:
        """The body, decoded. Nothing of it is read before its media type is known to be served.

        deadline: on the clock of `exchange.began`, in seconds; it ends the wait if it is earlier.
        Raises UnsupportedMedia (415), RequestTimeout (408), BodyTooLarge (413), UsageError (400),
        Overloaded (529), Cancelled (the client left).
        """
        boundary = _boundary(exchange.headers.get("content-type", ""))
        coding = exchange.headers.get("content-encoding", "").strip().lower()
        raw = await self._arrived(exchange, deadline)
        body = decode(raw, coding, self.max_bytes)
        return Body(body, size=len(body)) if boundary is None else _split(body, boundary)

    async def _arrived(self, exchange: Exchange, deadline: float | None) -> bytes:
        declared = exchange.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > self.max_bytes:
            raise too_large(self.max_bytes)
        limit, wait_seconds = f"{self._timeout_seconds:g} s", self._timeout_seconds
        if deadline is not None and (left := deadline - monotonic()) < wait_seconds:
            limit, wait_seconds = "the request's deadline", max(0.0, left)
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(wait_seconds):
                while True:
                    message = await exchange.receive()
                    if message["type"] == "http.disconnect":
                        raise Cancelled("the client left before its request was whole")
                    piece = message.get("body", b"")
                    size += len(piece)
                    self._hold(len(piece))
                    if size > self.max_bytes:
                        raise too_large(self.max_bytes)
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError:
            raise RequestTimeout(
                f"the body did not arrive within {limit}; {size} bytes came. "
                "Send it faster, or in smaller requests"
            ) from None
        finally:
            self._held_bytes -= size

    @contextmanager
    def kept(self, body: Body) -> Iterator[None]:
        """Count a decoded body while its request is in progress. Raises Overloaded (529)."""
        if self._kept_bytes + body.size > max(KEPT_BYTES, UPLOADS_AT_ONCE * self.max_bytes):
            raise Overloaded("the requests in progress hold too much text", retry_after_ms=1000)
        self._kept_bytes += body.size
        try:
            yield
        finally:
            self._kept_bytes -= body.size

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        if self._held_bytes > UPLOADS_AT_ONCE * self.max_bytes:
            raise Overloaded(
                "too many bodies are arriving at once",
                retry_after_ms=1000,
            )


@lru_cache(maxsize=256)
def _boundary(content_type: str) -> bytes | None:
    """None for JSON, the boundary for multipart. Raises UnsupportedMedia (415), UsageError."""
    message = Message()
    message["content-type"] = content_type
    kind = message.get_content_type()
    if not content_type or kind not in (JSON, MULTIPART):
        raise UnsupportedMedia(f"Content-Type takes {JSON} or {MULTIPART}; send the request as one")
    if message.get_content_charset("utf-8") not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMedia("the charset must be utf-8; encode the body as UTF-8")
    if kind == JSON:
        return None
    boundary = message.get_param("boundary")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= 70:
        raise UsageError(f"{MULTIPART} needs a boundary of 1 to 70 characters in its Content-Type")
    return boundary.encode("latin-1", "replace")


def _split(body: bytes, boundary: bytes) -> Body:
    """The parts of a multipart body. Raises UsageError."""
    collector = _Collector()
    try:
        parser = MultipartParser(boundary, collector.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise UsageError("the multipart body is damaged or ends early; send it again") from None
    if not collector.ended:
        raise UsageError("the multipart body ends before its closing boundary; send it again")
    parts = dict(collector.parts)
    json = parts.pop("request", None)
    if json is None:
        raise UsageError('the multipart body has no part named "request"; send the JSON in one')
    return Body(json, parts, len(body))


class _Collector:
    """Gathers parts from the parser's callbacks."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.ended = False
        self._field = bytearray()
        self._value = bytearray()
        self._data = bytearray()
        self._disposition = ""

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header_end,
            "on_part_data": lambda data, start, end: self._data.extend(data[start:end]),
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.parts) >= MAX_PARTS:
            raise UsageError(f"the body has more than {MAX_PARTS} parts; send fewer")
        self._disposition = ""
        self._data.clear()

    def _header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value.decode("utf-8", "replace")
        self._field.clear()
        self._value.clear()

    def _part_end(self) -> None:
        header = Message()
        header["content-disposition"] = self._disposition
        name = header.get_param("name", header="content-disposition")
        if header.get_content_disposition() != "form-data" or not isinstance(name, str) or not name:
            raise UsageError("a part has no name; give each a Content-Disposition with a name")
        if name in self.parts:
            raise UsageError("two parts have the same name; give each a name of its own")
        self.parts[name] = bytes(self._data)

    def _end(self) -> None:
        self.ended = True
