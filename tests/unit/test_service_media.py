"""Compressed and multipart bodies: what comes out, what is refused, and that output is bounded."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from adjudge.errors import (
    BodyTooLarge,
    Overloaded,
    RequestTimeout,
    UnsupportedMedia,
    UsageError,
)
from adjudge.scheduler import Cancelled
from adjudge.service.compression import MAX_WINDOW_BYTES, decode
from adjudge.service.exchange import Exchange
from adjudge.service.media import UPLOADS_AT_ONCE, Body, BodyReader

LIMIT = 4 << 20


def unsized_zstd(data: bytes, level: int = 3) -> bytes:
    """A frame that does not state its size, as streaming writers make it."""
    writer = zstandard.ZstdCompressor(level=level, write_content_size=False).compressobj()
    return writer.compress(data) + writer.flush()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


CODERS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstd,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
}
ALL = [*CODERS.items(), ("zstd", unsized_zstd)]


@pytest.mark.parametrize("coding, compress", ALL)
@given(data=st.binary(max_size=4000))
def test_what_went_in_comes_out(
    coding: str, compress: Callable[[bytes], bytes], data: bytes
) -> None:
    assert decode(compress(data), coding, LIMIT) == data


@pytest.mark.parametrize("coding, compress", ALL)
@given(data=st.binary(min_size=1, max_size=400), cut=st.integers(1, 1000))
def test_a_truncated_frame_is_refused(
    coding: str, compress: Callable[[bytes], bytes], data: bytes, cut: int
) -> None:
    whole = compress(data)
    with pytest.raises(UsageError, match="not one whole"):
        decode(whole[: -min(cut, len(whole))], coding, LIMIT)


@pytest.mark.parametrize("coding, compress", ALL)
def test_what_follows_the_frame_is_refused(coding: str, compress: Callable[[bytes], bytes]) -> None:
    frame = compress(b'{"state": 1}')
    for more in (frame, b"x", b"\0" * 300):
        with pytest.raises(UsageError, match="not one whole"):
            decode(frame + more, coding, LIMIT)


@pytest.mark.parametrize("coding, compress", ALL)
def test_a_bomb_is_refused_before_it_takes_memory(
    coding: str, compress: Callable[[bytes], bytes]
) -> None:
    bomb = compress(bytes(200 << 20))
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    with pytest.raises(BodyTooLarge, match=str(LIMIT)):
        decode(bomb, coding, LIMIT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20


def test_a_zstd_frame_that_lies_about_its_size_is_bounded_too() -> None:
    bomb = bytearray(unsized_zstd(bytes(200 << 20)))
    # The header's size flag says "1 byte" and that byte says 5; the window descriptor goes.
    assert bomb[4] & 0xE0 == 0
    lying = bytes(bomb[:4]) + bytes([bomb[4] | 0x20, 5]) + bytes(bomb[6:])
    tracemalloc.start()
    with pytest.raises((BodyTooLarge, UsageError)):
        decode(lying, "zstd", LIMIT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20


def test_a_zstd_window_over_the_bound_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=27)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = writer.compress(b"{}") + writer.flush()
    with pytest.raises(BodyTooLarge, match=str(MAX_WINDOW_BYTES)):
        decode(frame, "zstd", LIMIT)


def test_a_limit_above_the_window_bound_may_be_used_up() -> None:
    data = bytes(12 << 20)
    assert decode(zstd(data), "zstd", 16 << 20) == data


@pytest.mark.parametrize("coding", CODERS)
@given(data=st.binary(max_size=300))
def test_noise_is_refused_or_decoded_never_a_crash(coding: str, data: bytes) -> None:
    with suppress(UsageError, BodyTooLarge):
        decode(data, coding, LIMIT)


@pytest.mark.parametrize("coding, compress", ALL)
@given(data=st.binary(min_size=1, max_size=300), place=st.integers(0), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_changes_only_the_content(
    coding: str, compress: Callable[[bytes], bytes], data: bytes, place: int, bit: int
) -> None:
    frame = bytearray(compress(data))
    frame[place % len(frame)] ^= 1 << bit
    with suppress(UsageError, BodyTooLarge):
        assert isinstance(decode(bytes(frame), coding, LIMIT), bytes)


@pytest.mark.parametrize("checksum", [False, True])
def test_a_damaged_zstd_frame_is_refused_as_far_as_it_tells(checksum: bool) -> None:
    """A frame without a checksum may come out as other bytes, never as more or fewer."""
    data = b'{"state": "' + b"It rains. " * 9 + b'Parcel 8812 is late.", "questions": {}}'
    whole = zstandard.ZstdCompressor(write_checksum=checksum).compress(data)
    num_refused = 0
    for place in range(len(whole) * 8):
        frame = bytearray(whole)
        frame[place // 8] ^= 1 << place % 8
        try:
            found = decode(bytes(frame), "zstd", LIMIT)
        except (UsageError, BodyTooLarge):
            num_refused += 1
        else:
            assert found == data if checksum else len(found) == len(data)
    assert num_refused > len(whole)


@pytest.mark.parametrize("coding", ["snappy", "gzip, zstd", "zstd;q=1"])
def test_other_codings_are_415_and_the_message_names_the_known(coding: str) -> None:
    with pytest.raises(UnsupportedMedia, match="zstd, gzip, deflate, br"):
        decode(b"{}", coding, LIMIT)


def test_the_skippable_frame_is_no_body() -> None:
    with pytest.raises(UsageError):
        decode(b"\x50\x2a\x4d\x18\x02\x00\x00\x00{}" + zstd(b"{}"), "zstd", LIMIT)


# -- arrival


def read(
    body: bytes | list[bytes],
    *,
    reader: BodyReader | None = None,
    ends: bool = True,
    deadline: float | None = None,
    **headers: str,
) -> Body:
    """What a reader makes of these pieces; `ends` False: the last piece never comes."""
    pieces = [body] if isinstance(body, bytes) else body
    given_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "method": "POST",
        "path": "/",
        "headers": [
            (name.encode(), value.encode())
            for name, value in ({"content-type": "application/json"} | given_headers).items()
        ],
    }
    unread = list(pieces)

    async def receive() -> dict[str, object]:
        if unread:
            piece = unread.pop(0)
            if piece == LEFT:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": piece, "more_body": bool(unread) or not ends}
        await asyncio.Event().wait()
        raise AssertionError

    used = reader or BodyReader(max_bytes=1000, timeout_seconds=5)
    return asyncio.run(used.read(Exchange.begin(scope, receive), deadline))


LEFT = b"the client left"


def test_pieces_are_put_together() -> None:
    assert read([b'{"a"', b": ", b"1}"]).json == b'{"a": 1}'


def test_a_body_that_does_not_arrive_is_408() -> None:
    impatient = BodyReader(max_bytes=1000, timeout_seconds=0.01)
    with pytest.raises(RequestTimeout, match="4 bytes came"):
        read([b'{"a"'], reader=impatient, ends=False)


def test_a_deadline_ends_the_wait_for_a_body_if_it_is_earlier() -> None:
    with pytest.raises(RequestTimeout, match="deadline; 4 bytes came"):
        read([b'{"a"'], ends=False, deadline=monotonic())
    impatient = BodyReader(max_bytes=1000, timeout_seconds=0.01)
    with pytest.raises(RequestTimeout, match=r"within 0\.01 s"):
        read([b'{"a"'], reader=impatient, ends=False, deadline=monotonic() + 1000)


def test_a_deadline_counts_from_the_head() -> None:
    scope: dict[str, Any] = {"method": "POST", "path": "/", "headers": []}
    exchange = Exchange.begin(scope, lambda: asyncio.sleep(0, {}))
    exchange.began = 50.0
    assert exchange.deadline(None) is None
    assert exchange.deadline(500) == 50.5
    exchange.headers["x-deadline-ms"] = "250"
    assert exchange.deadline(500) == 50.25


def test_a_client_that_leaves_while_sending_is_let_go() -> None:
    with pytest.raises(Cancelled):
        read([b"{", LEFT], ends=False)


def test_too_large_is_refused_by_its_head_before_anything_is_read() -> None:
    with pytest.raises(BodyTooLarge, match="1000"):
        read([], ends=False, content_length="1001")


def test_too_large_is_refused_while_it_arrives() -> None:
    with pytest.raises(BodyTooLarge, match="1000"):
        read([b"x" * 600, b"x" * 401], ends=False)
    assert read([b"x" * 600, b"x" * 400]).json == b"x" * 1000


def test_a_wrong_media_type_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UnsupportedMedia):
        read([], ends=False, content_type="text/plain")


def test_all_bodies_together_are_bounded_and_given_back() -> None:
    reader = BodyReader(max_bytes=10, timeout_seconds=5)
    reader._held_bytes = UPLOADS_AT_ONCE * 10 - 5
    with pytest.raises(Overloaded):
        read(b"x" * 6, reader=reader)
    assert read(b"x" * 5, reader=reader).json == b"x" * 5
    assert reader._held_bytes == UPLOADS_AT_ONCE * 10 - 5


# -- multipart


def multipart(*parts: tuple[str, bytes], ending: bytes = b"--B--\r\n") -> bytes:
    return (
        b"".join(
            b"--B\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n" for head, content in parts
        )
        + ending
    )


def part(name: str, content: bytes = b"data", more: str = "") -> tuple[str, bytes]:
    return f'Content-Disposition: form-data; name="{name}"{more}', content


def split(body: bytes, content_type: str = "multipart/form-data; boundary=B") -> Body:
    return read(body, content_type=content_type)


def test_parts_are_told_apart_by_name() -> None:
    image = b"\r\n--B-not--\r\n\x00\xff"
    body = split(multipart(part("request", b"{}"), part("asset-0", image, '; filename="a"')))
    assert body == Body(b"{}", {"asset-0": image})


def test_a_compressed_multipart_is_decoded_first() -> None:
    packed = zstd(multipart(part("request", b"{}")))
    body = read(packed, content_type="multipart/form-data; boundary=B", content_encoding="zstd")
    assert body.json == b"{}"


@pytest.mark.parametrize(
    "body, message",
    [
        (multipart(part("other")), "no part named"),
        (multipart(part("request"), part("request")), "same name"),
        (multipart(("Content-Type: text/plain", b"x")), "has no name"),
        (multipart(("Content-Disposition: attachment; name=request", b"x")), "has no name"),
        (multipart(part("request"), ending=b""), "ends"),
        (multipart(part("request"))[:30], "ends"),
        (b"", "ends"),
        (b"noise", "damaged"),
        (multipart(("X-Long: " + "x" * 5000, b"")), "damaged"),
        (multipart(part("request"), *(part(str(i)) for i in range(300))), "more than 257 parts"),
    ],
)
def test_a_damaged_multipart_is_400(body: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(
            body,
            reader=BodyReader(max_bytes=100_000, timeout_seconds=5),
            content_type="multipart/form-data; boundary=B",
        )


@pytest.mark.parametrize("parameters", ["", "; boundary=", f"; boundary={'x' * 71}"])
def test_a_multipart_needs_a_boundary(parameters: str) -> None:
    with pytest.raises(UsageError, match="boundary"):
        split(b"", f"multipart/form-data{parameters}")


@given(noise=st.binary(max_size=300), place=st.integers(0), header=st.text(max_size=40))
def test_noise_in_a_multipart_or_its_type_is_refused_never_a_crash(
    noise: bytes, place: int, header: str
) -> None:
    body = bytearray(multipart(part("request", b"{}"), part("asset-0")))
    cut = place % len(body)
    body[cut : cut + 3] = noise
    media = header.encode("ascii", "ignore").decode().replace("\n", "").replace("\r", "")
    for kind in ("multipart/form-data; boundary=B", f"multipart/form-data; {media}", media):
        with suppress(UsageError, UnsupportedMedia):
            split(bytes(body), kind)
