"""Compressed bodies, decoded in one piece with a bounded output.

Every coding keeps the same promises: at most `limit` bytes come out, a body that ends early or
goes on after its end is refused, and nothing is decoded twice. Damage is noticed as far as the
coding tells: gzip and deflate carry a checksum; br does not, and a zstd frame only if its writer
asked for one, so damage to the bytes it holds may come out as other bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import zstandard

from adjudge.errors import BodyTooLarge, UnsupportedMedia, UsageError

MAX_WINDOW_BYTES = 8 << 20
"""Largest zstd window accepted: what RFC 8878 asks every decoder to support."""


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
UNKNOWN_SIZE = 2**64 - 2
"""What a frame that does not state its size reports, and what lies above."""
ZSTD_STEP_BYTES = 256
"""A block takes at least 3 bytes and becomes at most 128 KiB: 11 MiB from one step."""


def decode(body: bytes, coding: str, limit: int) -> bytes:
    """The body behind its Content-Encoding.

    Raises UnsupportedMedia (415), UsageError (400: truncated, damaged, more than one frame),
    BodyTooLarge (413: output over `limit` bytes, window over MAX_WINDOW_BYTES).
    """
    if coding in ("", "identity"):
        return body
    decoder = CODINGS.get(coding)
    if decoder is None:
        known = ", ".join(CODINGS)
        raise UnsupportedMedia(
            f"Content-Encoding takes one of {known}; send the body as one of them"
        )
    return decoder(body, limit)


def _zstd(body: bytes, limit: int) -> bytes:
    most_window = max(MAX_WINDOW_BYTES, limit)
    try:
        frame = zstandard.get_frame_parameters(body)
    except zstandard.ZstdError:
        raise _damaged("zstd") from None
    if not body.startswith(ZSTD_MAGIC):
        raise _damaged("zstd")
    if limit < frame.content_size < UNKNOWN_SIZE:
        raise too_large(limit)
    if frame.window_size > most_window:
        raise BodyTooLarge(
            f"the zstd frame needs a window of {frame.window_size} bytes; the limit is "
            f"{most_window}. Compress with a smaller window"
        )
    decoder = zstandard.ZstdDecompressor(max_window_size=most_window).decompressobj()
    found = bytearray()
    try:
        # The size that a frame states may be a lie, so only small steps bound what comes out.
        for start in range(0, len(body), ZSTD_STEP_BYTES):
            if decoder.eof:
                raise _damaged("zstd")
            found += decoder.decompress(body[start : start + ZSTD_STEP_BYTES])
            if len(found) > limit:
                raise too_large(limit)
    except zstandard.ZstdError:
        raise _damaged("zstd") from None
    if not decoder.eof or decoder.unused_data:
        raise _damaged("zstd")
    return bytes(found)


def _zlib(name: str, window_bits: int) -> Callable[[bytes, int], bytes]:
    def decoded(body: bytes, limit: int) -> bytes:
        decoder = zlib.decompressobj(window_bits)
        try:
            found = decoder.decompress(body, limit + 1)
        except zlib.error:
            raise _damaged(name) from None
        if len(found) > limit:
            raise too_large(limit)
        if not decoder.eof or decoder.unused_data:
            raise _damaged(name)
        return found

    return decoded


def _brotli(body: bytes, limit: int) -> bytes:
    decoder = _BROTLI.Decompressor()
    found = bytearray()
    try:
        piece = decoder.process(body, output_buffer_limit=limit + 1)
        while piece or not decoder.can_accept_more_data():
            found += piece
            if len(found) > limit:
                raise too_large(limit)
            piece = decoder.process(b"", output_buffer_limit=limit + 1)
    except _BROTLI.error:
        raise _damaged("br") from None
    if not decoder.is_finished():
        raise _damaged("br")
    return bytes(found)


def _optional(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


_BROTLI = _optional("brotli")

CODINGS: dict[str, Callable[[bytes, int], bytes]] = {
    "zstd": _zstd,
    "gzip": _zlib("gzip", 16 + zlib.MAX_WBITS),
    "deflate": _zlib("deflate", zlib.MAX_WBITS),
}
if _BROTLI is not None:
    CODINGS["br"] = _brotli


def too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {limit} bytes once decoded; send less, or split the request"
    )


def _damaged(coding: str) -> UsageError:
    return UsageError(
        f"the body is not one whole {coding} frame: it ends early, goes on after its end, or is "
        "damaged; compress it again, or send it as it is"
    )
