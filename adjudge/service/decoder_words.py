"""What msgspec says of a value that does not fit a type, as a detail in this server's words.

Its messages look like "Expected `str`, got `int` - at `$.input`". An unknown tag is quoted in
them, and a tag is text of the request, so none of its words go out.
"""

from __future__ import annotations

import re

from adjudge.errors import Detail

_NAMES = {
    "array": "an array",
    "bool": "true or false",
    "float": "a number",
    "int": "a number",
    "null": "null",
    "object": "an object",
    "str": "a string",
}
_EXPECTED = re.compile(r"Expected `([a-z |]+)`, got `([a-z]+)`")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def detail_of(message: str) -> Detail:
    """The detail of a msgspec.ValidationError's message."""
    text, _, path = message.partition(" - at `$")
    loc: list[str | int] = ["body"]
    for name, place in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        loc.append(name or int(place))
    if found := _MISSING.fullmatch(text):
        return Detail(loc=(*loc, found[1]), msg="field required", type="missing")
    if found := _EXPECTED.fullmatch(text):
        wanted = " or ".join(_NAMES.get(word, word) for word in found[1].split(" | "))
        msg = f"must be {wanted}, not {_NAMES.get(found[2], found[2])}"
        return Detail(loc=tuple(loc), msg=msg, type="type_error")
    if loc[-1] == "type":
        known = "a question is predicate, choice or score; a part input_text or input_json"
        msg = f"this type is not known here: {known}"
        return Detail(loc=tuple(loc), msg=msg, type="union_tag_invalid")
    msg = "the value does not fit; /openapi.json tells what does"
    return Detail(loc=tuple(loc), msg=msg, type="value_error")
