"""Strict JSON: one reading of every body, or a refusal that says where to look.

msgspec decodes, and by itself refuses bad UTF-8, lone surrogates, NaN, Infinity, numbers beyond
a double and integers beyond 4,300 characters. It keeps the last of two equal keys and bounds
nesting by the interpreter's stack only, so both are checked here on the body's *skeleton*: the
body without its strings, of which only `[]{}:` is kept. Time and memory are linear in the body.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

import msgspec
import numpy as np

from adjudge.errors import Detail, InvalidRequest

MAX_NESTING = 127
MAX_INTEGER_CHARACTERS = 4300
"""Digits and sign of an integer that msgspec reads; the interpreter's bound is on digits alone."""

# Possessive, and content with an unclosed string: every attempt matches, so no body is rescanned.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_SKELETON = bytes(set(range(256)) - set(b"[]{}:"))
_STEP = np.zeros(256, dtype=np.int8)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1


def decode_json(body: bytes) -> Any:
    """The value of a JSON text. Raises InvalidRequest (loc ["body"], or the known field that
    holds a repeated key) for anything that has no single exact reading."""
    skeleton = _skeleton(body)
    depth = _nesting(skeleton)
    if depth > MAX_NESTING:
        raise _refused(
            f"the body nests {depth} levels deep; the limit is {MAX_NESTING}. Flatten it, or send "
            "the inner part as a string",
            "json_nesting",
        )
    try:
        value = msgspec.json.decode(body)
    except msgspec.ValidationError:
        raise _refused(
            f"a number is out of range: integers have at most {MAX_INTEGER_CHARACTERS} characters, "
            "a minus sign among them, and other numbers fit a double. Send it as a string",
            "json_number_range",
        ) from None
    except (msgspec.MsgspecError, UnicodeError) as exc:
        if body.startswith(codecs.BOM_UTF8):
            raise _refused(
                "the body begins with a byte order mark; remove the BOM", "json_invalid"
            ) from None
        hint = "; a lone surrogate is not text" if _SURROGATE.search(body) else ""
        raise _refused(f"the body is not valid JSON: {exc}{hint}", "json_invalid") from None
    if skeleton.count(b":") != _skeleton(msgspec.json.encode(value)).count(b":"):
        raise InvalidRequest(
            Detail(
                loc=_repeated_key_loc(body),
                msg="a key appears more than once in this object; send each key once",
                type="json_duplicate_key",
            )
        )
    return value


def _skeleton(body: bytes) -> bytes:
    return _STRING.sub(b"", body).translate(None, _NOT_SKELETON)


def _nesting(skeleton: bytes) -> int:
    """Deepest nesting of the brackets; exact for valid JSON."""
    if skeleton.count(b"[") + skeleton.count(b"{") <= MAX_NESTING:
        return 0
    steps = _STEP[np.frombuffer(skeleton, dtype=np.uint8)]
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))


def _refused(message: str, kind: str) -> InvalidRequest:
    return InvalidRequest(Detail(loc=("body",), msg=message, type=kind))


class _Repeating(dict[str, Any]):
    """An object that had a key twice."""


def _repeated_key_loc(body: bytes) -> tuple[str | int, ...]:
    """Where the repeated key is, as far as the request's own shape names the place. Runs only
    once a body is already refused."""

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        return found if len(found) == len(pairs) else _Repeating(found)

    root = json.loads(body, object_pairs_hook=keep)
    places: list[tuple[tuple[str | int, ...], Any]] = [(("body",), root)]
    if isinstance(root, dict):
        questions = root.get("questions")
        places.append((("body", "questions"), questions))
        if isinstance(questions, dict):
            for name, question in questions.items():
                places.append((("body", "questions", name), question))
                if isinstance(question, dict):
                    criteria = question.get("criteria")
                    places.append((("body", "questions", name, "criteria"), criteria))
    for loc, value in places:
        if isinstance(value, _Repeating):
            return loc
    return ("body",)
