"""Strict JSON: exactly one reading, or a 422; never another exception, never quadratic."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adjudge.errors import InvalidRequest
from adjudge.wire import decode_json
from adjudge.wire.strict_json import MAX_NESTING

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


def refusal(body: bytes) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(body)
    assert caught.value.status == 422
    (detail,) = caught.value.details
    return detail.loc, detail.type


def reference(body: bytes) -> Any:
    """The same rules, slowly, with the standard library. Raises ValueError."""

    def refuse(_: str) -> None:
        raise ValueError("constant")

    def finite(text: str) -> float:
        if not math.isfinite(float(text)):
            raise ValueError("range")
        return float(text)

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("repeated key")
        return dict(pairs)

    def depth(value: Any) -> int:
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            return 1 + max(map(depth, inner), default=0)
        return 0

    text = body.decode("utf-8")
    if text.startswith("\ufeff"):
        raise ValueError("byte order mark")
    value = json.loads(text, object_pairs_hook=distinct, parse_constant=refuse, parse_float=finite)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    if depth(value) > MAX_NESTING:
        raise ValueError("nesting")
    return value


@given(value=values, ascii_only=st.booleans(), indent=st.none() | st.just(1))
def test_reads_what_json_says(value: Any, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert repr(decode_json(body)) == repr(value)


FRAGMENTS = [
    *'{}[],: \n\t"\\', '"a"', '"a":1', '"b":', "1", "-0", "-0.0", "1e5", "1E+400", "0.1", "01",
    "1.", ".5", "-", "NaN", "Infinity", "null", "true", "nul", '"\\ud83d\\ude00"', '"\\ud800"',
    '"\\udc00"', '"\\u0000"', '"\\x"', '"\\""', '"{[:"', "\x00", "é", "/", "//", "'", "\ufeff",
]  # fmt: skip


@given(body=st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join).map(str.encode))
@settings(max_examples=2000)
@example(b'{"a":{"b":1,"b":1}}')
@example(b'{"a":1,"\\u0061":2}')
@example(b'"\xed\xa0\x80"')
@example(b"\xef\xbb\xbf{}")
@example(b'{"a:":[":"],"a:\\"":{}}')
def test_accepts_what_the_reference_accepts(body: bytes) -> None:
    try:
        expected = reference(body)
    except ValueError:
        refusal(body)
    else:
        assert repr(decode_json(body)) == repr(expected)


@given(value=st.dictionaries(st.text(max_size=3), values, min_size=1), data=st.data())
def test_a_repeated_key_is_refused_wherever_it_is(value: dict[str, Any], data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(value)))
    again = json.dumps(data.draw(values))
    inner = f"{{{json.dumps(name)}: {again}, {json.dumps(value)[1:]}"
    before = data.draw(st.sampled_from(["", "[[", '{"x": [', '{"": ']))
    after = before.translate({91: "]", 123: "}"}).replace('"x": ', "").replace('"": ', "")[::-1]
    assert refusal(f"{before}{inner}{after}".encode())[1] == "json_duplicate_key"


@pytest.mark.parametrize(
    "body, loc",
    [
        (b'{"state": 1, "state": 1}', ("body",)),
        (b'{"state": {"a": [{"b": 1, "b": 2}]}}', ("body",)),
        (b'{"questions": {"q": {}, "q": {}}}', ("body", "questions")),
        (b'{"questions": {"q": {"type": 1, "type": 1}}}', ("body", "questions", "q")),
        (
            b'{"questions": {"q": {"criteria": {"a": null, "a": null}}}}',
            ("body", "questions", "q", "criteria"),
        ),
    ],
)
def test_a_repeated_key_is_located(body: bytes, loc: tuple[str, ...]) -> None:
    assert refusal(body) == (loc, "json_duplicate_key")


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_nesting(opening: bytes, closing: bytes) -> None:
    levels = opening.count(b"[") + opening.count(b"{")

    def nested(count: int) -> bytes:
        return (
            opening * (count // levels)
            + b"[]" * (count % levels or 1)
            + closing * (count // levels)
        )

    allowed = (MAX_NESTING - 1) // levels * levels
    decode_json(nested(allowed))
    for count in (allowed + levels, 10_000, 500_000):
        assert refusal(nested(count)) == (("body",), "json_nesting")
    assert refusal(opening * 1_000_000) == (("body",), "json_nesting")


def test_nesting_limit_is_exact_and_strings_do_not_count() -> None:
    assert decode_json(b"[" * 127 + b"]" * 127) is not None
    assert refusal(b"[" * 128 + b"]" * 128)[1] == "json_nesting"
    assert decode_json(b'["' + b"[{" * 1000 + b'\\"[", {}]') == ["[{" * 1000 + '"[', {}]


def test_integers_up_to_4300_digits() -> None:
    assert decode_json(b"9" * 4300) == 10**4300 - 1
    assert decode_json(b"-" + b"9" * 4299) == 1 - 10**4299
    for body in (b"1" * 4301, b"-" + b"1" * 4300, b"1e400", b"[-1e400]"):
        assert refusal(body) == (("body",), "json_number_range")


@pytest.mark.parametrize(
    "body",
    [b'"' + b'\\"' * 2_000_000, b'["' * 1_000_000, b'"\\' * 1_300_000, b'{"a":' + b'"' * 4_000_001],
    ids=["open string of escapes", "open arrays", "half escapes", "quotes"],
)
@pytest.mark.parametrize("tail", [b"", b'"', b"\\"])
def test_four_megabytes_of_quotes_are_read_once(body: bytes, tail: bytes) -> None:
    with suppress(InvalidRequest):  # a closed string is text; quadratic rescanning takes hours
        assert isinstance(decode_json(body + tail), str)


@pytest.mark.parametrize("body", [b"", b" ", b"\xff", b'"\xff"', b"{", b"{} {}", b"nan", b"'a'"])
def test_what_is_not_json(body: bytes) -> None:
    assert refusal(body) == (("body",), "json_invalid")


def test_a_byte_order_mark_is_named() -> None:
    with pytest.raises(InvalidRequest, match="begins with a byte order mark; remove the BOM"):
        decode_json(b'\xef\xbb\xbf{"state": 1}')
    assert decode_json('"\ufeff"'.encode()) == "\ufeff"


def test_lone_surrogates_are_named() -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        decode_json(b'{"state": "\\ud800"}')
