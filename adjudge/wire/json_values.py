"""Python values that came from no JSON text, held to what JSON text can say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adjudge.errors import Detail, InvalidRequest
from adjudge.wire.strict_json import MAX_INTEGER_CHARACTERS, MAX_NESTING

_INTEGERS = range(1 - 10 ** (MAX_INTEGER_CHARACTERS - 1), 10**MAX_INTEGER_CHARACTERS)


def plain_json(value: Any) -> Any:
    """`value` with mappings as dicts and tuples as lists, or InvalidRequest at the first value
    that JSON cannot say or whose JSON `decode_json` would refuse."""
    return _plain(value, ("body",), 0)


def _plain(value: Any, loc: tuple[str | int, ...], depth: int) -> Any:
    if isinstance(value, str):
        return _text(value, loc)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value not in _INTEGERS:
            raise _refused(
                loc,
                f"an integer has at most {MAX_INTEGER_CHARACTERS} characters, a minus sign among "
                "them; send a string",
                "json_number_range",
            )
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(
                loc, "numbers must be finite; send a string instead", "json_number_range"
            )
        return value
    if not isinstance(value, Mapping | list | tuple):
        name = type(value).__name__
        raise _refused(loc, f"JSON has no {name}; send a dict, list, str or number", "json_type")
    if depth == MAX_NESTING:
        message = f"the request nests more than {MAX_NESTING} levels deep; flatten it"
        raise _refused(loc, message, "json_nesting")
    if not isinstance(value, Mapping):
        return [_plain(item, _step(loc, place), depth + 1) for place, item in enumerate(value)]
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise _refused(loc, f"keys must be strings, not {type(key).__name__}", "key_type")
        plain[_text(key, loc)] = _plain(item, _step(loc, key), depth + 1)
    return plain


def _text(value: str, loc: tuple[str | int, ...]) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _refused(loc, "text must not hold lone surrogates", "string_unicode") from None
    return value


def _step(loc: tuple[str | int, ...], key: str | int) -> tuple[str | int, ...]:
    """One step further down, as long as the request's own shape names the place."""
    return (*loc, key) if len(loc) < 4 and loc[1:2] != ("state",) else loc


def _refused(loc: tuple[str | int, ...], message: str, kind: str) -> InvalidRequest:
    return InvalidRequest(Detail(loc=loc, msg=message, type=kind))
