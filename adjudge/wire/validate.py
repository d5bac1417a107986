"""From JSON values to a typed Request, or every wrong field at once.

Locations follow the body: ["body", "questions", name, type, field]. Messages name the rule, the
count and the remedy; they never quote text of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjudge.errors import Detail, InvalidRequest
from adjudge.wire.aliases import spelled_out
from adjudge.wire.json_values import plain_json
from adjudge.wire.request import (
    MAX_SALT,
    Asset,
    Choice,
    Noul,
    NoulCriteria,
    Question,
    Request,
    Score,
    Text,
)
from adjudge.wire.strict_json import decode_json

Loc = tuple[str | int, ...]

_TEXT = "a string, an object or an array"
_TYPES = "noul, choice or score"
_MAX_DETAILS = 64


def parse_request(body: bytes, *, aliases: bool = False) -> Request:
    """A request from its JSON text (UTF-8). Raises InvalidRequest with every wrong field.

    aliases: also read the spellings of wire/aliases.py, for families that take them.
    """
    return typed_request(decode_json(body), aliases=aliases)


def request_from(value: Mapping[str, Any], *, aliases: bool = False) -> Request:
    """A request from Python dicts and lists, held to the same rules as a body: string keys,
    finite numbers, well-formed Unicode, no cycles. Raises InvalidRequest."""
    return typed_request(plain_json(value), aliases=aliases)


class _Faults:
    """Collects what is wrong; `Request` is built only if nothing is."""

    def __init__(self) -> None:
        self.details: list[Detail] = []
        self.num_left_out = 0

    def add(self, loc: Loc, msg: str, kind: str, value: Any = None) -> None:
        if len(self.details) < _MAX_DETAILS:
            self.details.append(Detail(loc=loc, msg=msg, type=kind, input=value))
        else:
            self.num_left_out += 1

    def refuse(self) -> None:
        """Raises InvalidRequest if anything is wrong."""
        if self.num_left_out:
            msg = f"{self.num_left_out} more fields are wrong; the first {_MAX_DETAILS} are listed"
            self.details.append(Detail(loc=("body",), msg=msg, type="too_many_errors"))
        if self.details:
            raise InvalidRequest(*self.details)

    def missing(self, loc: Loc, what: str) -> None:
        self.add(loc, f"field required: {what}", "missing")

    def wrong_type(self, loc: Loc, wanted: str, value: Any, kind: str) -> None:
        self.add(loc, f"must be {wanted}, not {_json_type(value)}", kind)


def typed_request(value: Any, *, aliases: bool = False) -> Request:
    """A request from a value of `decode_json`. Raises InvalidRequest with every wrong field."""
    faults = _Faults()
    if not isinstance(value, dict):
        faults.wrong_type(("body",), "an object", value, "object_type")
        faults.refuse()
    state: Any = value.get("state")
    if "state" not in value:
        faults.missing(("body", "state"), _TEXT)
    elif not _is_text(state):
        faults.wrong_type(("body", "state"), _TEXT, state, "state_type")
    model = value.get("model")
    if model is not None and not isinstance(model, str):
        faults.wrong_type(("body", "model"), "a string", model, "string_type")
    diagnostics = value.get("x_diagnostics", False)
    if not isinstance(diagnostics, bool):
        faults.wrong_type(("body", "x_diagnostics"), "true or false", diagnostics, "bool_type")
    questions = _questions(value, faults, aliases=aliases)
    assets = _assets(value.get("assets"), faults)
    salt = _salt(value.get("cache_salt"), faults)
    faults.refuse()
    return Request(
        state=state,
        questions=questions,
        model=model,
        assets=assets,
        cache_salt=salt,
        diagnostics=diagnostics,
    )


def _salt(given: Any, faults: _Faults) -> str | None:
    loc: Loc = ("body", "cache_salt")
    if given is None:
        return None
    if not isinstance(given, str):
        faults.wrong_type(loc, "a string", given, "string_type")
        return None
    if not given:
        faults.add(loc, "must not be empty; leave cache_salt out for none", "string_too_short")
    elif len(given) > MAX_SALT:
        msg = f"has {len(given)} characters and the limit is {MAX_SALT}; send a digest of it"
        faults.add(loc, msg, "string_too_long")
    return given


def _questions(value: dict[str, Any], faults: _Faults, *, aliases: bool) -> dict[str, Question]:
    loc: Loc = ("body", "questions")
    given = value.get("questions")
    if "questions" not in value:
        faults.missing(loc, "an object of name: question")
        return {}
    if not isinstance(given, dict):
        faults.wrong_type(loc, "an object of name: question", given, "object_type")
        return {}
    if not given:
        faults.add(loc, "there are 0 questions; ask at least 1", "too_short", 0)
    questions: dict[str, Question] = {}
    for name, question in given.items():
        at = (*loc, name)
        if not name:
            faults.add(at, "a question's name must not be empty", "string_too_short")
            continue
        typed = _question(at, question, faults, aliases=aliases)
        if typed is not None:
            questions[name] = typed
    return questions


def _question(at: Loc, question: Any, faults: _Faults, *, aliases: bool) -> Question | None:
    question = spelled_out(question) if aliases else question
    if not isinstance(question, dict):
        faults.wrong_type(at, "an object with a type", question, "object_type")
        return None
    kind = question.get("type")
    if kind is None:
        faults.add(at, f"the question has no type; give {_TYPES}", "union_tag_not_found")
        return None
    if kind == "box":
        faults.add(at, f"box questions are not served by this model; ask {_TYPES}", "box_type")
        return None
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        faults.add(at, f"the question's type is not known; give {_TYPES}", "union_tag_invalid")
        return None
    at = (*at, kind)
    instructions = question.get("instructions")
    if instructions is not None and not _is_text(instructions):
        faults.wrong_type((*at, "instructions"), _TEXT, instructions, "text_type")
    if aliases and kind == "choice" and isinstance(question.get("criteria"), list):
        criteria = _listed((*at, "criteria"), question["criteria"], faults)
        return Choice(criteria=criteria, instructions=instructions)
    return reader(at, question, instructions, faults)


def _listed(at: Loc, options: list[Any], faults: _Faults) -> dict[str, Text | None]:
    """The criteria of a choice whose options are an array of names."""
    if not options:
        faults.add(at, "there are 0 options; give at least 1", "too_short", 0)
    first: dict[str, int] = {}
    for place, option in enumerate(options):
        if not isinstance(option, str):
            faults.wrong_type(
                (*at, place), "a string, the name of an option", option, "string_type"
            )
        elif option in first:
            msg = f"is the same text as option {first[option] + 1} of {len(options)}; send it once"
            faults.add((*at, place), msg, "duplicate_option")
        else:
            first[option] = place
    return dict.fromkeys(first)


def _noul(at: Loc, question: dict[str, Any], instructions: Any, faults: _Faults) -> Question:
    given = question.get("criteria")
    criteria: NoulCriteria | None = None
    if given is not None and not isinstance(given, dict):
        faults.wrong_type((*at, "criteria"), "an object of true / false", given, "object_type")
        return Noul(instructions=instructions)
    if given is not None:
        for side in ("true", "false"):
            if given.get(side) is not None and not _is_text(given[side]):
                faults.wrong_type((*at, "criteria", side), _TEXT, given[side], "text_type")
        criteria = NoulCriteria(true=given.get("true"), false=given.get("false"))
    described = criteria is not None and not (criteria.true is None and criteria.false is None)
    if instructions is None and not described:
        msg = "give instructions, or describe at least one of criteria true and false"
        faults.add((*at, "instructions"), msg, "missing")
    return Noul(instructions=instructions, criteria=criteria)


def _choice(at: Loc, question: dict[str, Any], instructions: Any, faults: _Faults) -> Question:
    at = (*at, "criteria")
    criteria = question.get("criteria")
    wanted = "an object of option: description or null"
    if "criteria" not in question:
        faults.missing(at, wanted)
    elif not isinstance(criteria, dict):
        faults.wrong_type(at, wanted, criteria, "object_type")
    elif not criteria:
        faults.add(at, "there are 0 options; give at least 1", "too_short", 0)
    else:
        for place, text in enumerate(criteria.values(), 1):
            if text is not None and not _is_text(text):
                msg = f"the description of option {place} of {len(criteria)} must be {_TEXT}, or"
                faults.add(at, f"{msg} null, not {_json_type(text)}", "text_type")
    return Choice(criteria=criteria or {}, instructions=instructions)


def _score(at: Loc, question: dict[str, Any], instructions: Any, faults: _Faults) -> Question:
    at = (*at, "criteria")
    criteria = question.get("criteria")
    wanted = "an array of levels, low to high"
    if "criteria" not in question:
        faults.missing(at, wanted)
    elif not isinstance(criteria, list):
        faults.wrong_type(at, wanted, criteria, "list_type")
    elif not criteria:
        faults.add(at, "there are 0 levels; give at least 1", "too_short", 0)
    else:
        for place, text in enumerate(criteria):
            if not _is_text(text):
                faults.wrong_type((*at, place), _TEXT, text, "text_type")
    return Score(criteria=criteria or [], instructions=instructions)


_READERS = {"noul": _noul, "choice": _choice, "score": _score}


def _assets(given: Any, faults: _Faults) -> dict[str, Asset] | None:
    loc: Loc = ("body", "assets")
    if given is None:
        return None
    if not isinstance(given, dict):
        faults.wrong_type(loc, "an object of placeholder: asset", given, "object_type")
        return None
    if not given:
        faults.add(loc, "there are 0 assets; name at least 1 or leave assets out", "too_short", 0)
    assets: dict[str, Asset] = {}
    for name, entry in given.items():
        at = (*loc, name)
        if not isinstance(entry, dict):
            faults.wrong_type(at, "an object with a type", entry, "object_type")
            continue
        fields = {key: entry.get(key) for key in ("format", "data_base64", "part")}
        for key, value in fields.items():
            if value is not None and not isinstance(value, str):
                faults.wrong_type((*at, key), "a string", value, "string_type")
        if entry.get("type", "image") != "image":
            faults.add((*at, "type"), "the only asset type is image", "literal_error")
        if fields["part"] is None and fields["data_base64"] is None:
            faults.add(at, "give the asset's part or its data_base64", "missing")
        assets[name] = Asset(type="image", **fields)
    return assets


def _is_text(value: Any) -> bool:
    return isinstance(value, str | dict | list)


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
