"""POST /v1/decisions: OpenAI's spelling of the same questions, mapped both ways.

    input                         state: text as it is; items as an array, each message's content
                                  reduced to its text or data (one part alone, several as an array)
    predicate                     noul
    choice: choices[value, description]   criteria in the same order; true and false become words
    score: levels[label, description]     levels "label" or "label: description"

Questions are a list and may be nameless; answers come back as a list in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from adjudge.errors import Detail, InvalidRequest
from adjudge.service.decide import Asked
from adjudge.service.decoder_words import detail_of
from adjudge.wire import ChoiceAnswer, NoulAnswer, Response, decode_json, response_to
from adjudge.wire.request import MAX_SALT

if TYPE_CHECKING:
    from adjudge.service.engines import Engines


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class InputJson(msgspec.Struct, frozen=True, tag_field="type", tag="input_json"):
    data: dict[str, Any] | list[Any]


class InputImage(msgspec.Struct, frozen=True, tag_field="type", tag="input_image"):
    image_url: str


Instructions = str | list[InputText | InputJson | InputImage]


class PredicateParam(msgspec.Struct, frozen=True, tag_field="type", tag="predicate"):
    instructions: Instructions
    name: str | None = None


class ChoiceOption(msgspec.Struct, frozen=True):
    value: bool | str
    description: str | None = None


class ChoiceParam(msgspec.Struct, frozen=True, tag_field="type", tag="choice"):
    instructions: Instructions
    choices: list[ChoiceOption]
    name: str | None = None


class ScoreLevel(msgspec.Struct, frozen=True):
    label: str
    description: str | None = None


class ScoreParam(msgspec.Struct, frozen=True, tag_field="type", tag="score"):
    instructions: Instructions
    levels: list[ScoreLevel]
    name: str | None = None


QuestionParam = PredicateParam | ChoiceParam | ScoreParam


class DecisionRequest(msgspec.Struct, frozen=True):
    """The body of POST /v1/decisions. Unknown fields are ignored."""

    input: str | list[dict[str, Any]]
    questions: list[QuestionParam]
    model: str | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT)] | None = None


_WORDS = {"noul": "predicate", "score": "score", "choice": "choice"}
_FIELDS = {("choice", "criteria"): "choices", ("score", "criteria"): "levels"}


def decisions(engines: Engines, metadata_key: str) -> Callable[[bytes], Asked]:
    """How to read a body and render its answer. metadata_key as in `encode_response`."""

    def interpret(body: bytes) -> Asked:
        try:
            asked = msgspec.convert(decode_json(body), DecisionRequest)
        except msgspec.ValidationError as error:
            raise InvalidRequest(detail_of(str(error))) from None
        _check_names(asked)
        value = {
            "state": _state(asked.input),
            "model": asked.model,
            "cache_salt": asked.cache_salt,
            "questions": {
                str(place): _question(place, q) for place, q in enumerate(asked.questions)
            },
        }
        try:
            door, request = engines.read(value)
        except InvalidRequest as error:
            raise InvalidRequest(*map(_relocated, error.details)) from None
        return Asked(
            door, request, lambda response: _rendered(asked, response, metadata_key), _relocated
        )

    return interpret


def _check_names(asked: DecisionRequest) -> None:
    seen: set[str] = set()
    for place, question in enumerate(asked.questions):
        if question.name is not None:
            if question.name in seen:
                raise _refused(
                    ("questions", place, "name"),
                    "another question has this name; give each a name of its own, or none",
                    "name_repeated",
                )
            seen.add(question.name)
        if isinstance(question, ChoiceParam):
            words = [_word(option.value) for option in question.choices]
            if len(set(words)) != len(words):
                raise _refused(
                    ("questions", place, "choices"),
                    "two choices have the same value; give each a value of its own",
                    "choice_repeated",
                )


def _state(given: str | list[dict[str, Any]]) -> Any:
    if isinstance(given, str):
        return given
    return [_item(("input", place), item) for place, item in enumerate(given)]


def _item(loc: tuple[str | int, ...], item: dict[str, Any]) -> dict[str, Any]:
    """A message or tool item, its content or output reduced to text and data."""
    return {
        key: _parts((*loc, key), value) if key in ("content", "output") else value
        for key, value in item.items()
    }


def _parts(loc: tuple[str | int, ...], content: Any) -> Any:
    if not isinstance(content, list):
        return content
    found = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        for known, key in (("text", "text"), ("refusal", "refusal"), ("json", "data")):
            if kind in (known, f"input_{known}", f"output_{known}") and key in part:
                found.append(part[key])
                break
        else:
            raise _refused((*loc, place), "only text and JSON parts are served", "part_unsupported")
    return found[0] if len(found) == 1 else found


def _question(place: int, question: QuestionParam) -> dict[str, Any]:
    instructions = question.instructions
    if not isinstance(instructions, str):
        loc = ("questions", place, "instructions")
        instructions = _parts(loc, msgspec.to_builtins(instructions))
    if isinstance(question, PredicateParam):
        return {"type": "noul", "instructions": instructions}
    if isinstance(question, ChoiceParam):
        criteria: Any = {_word(option.value): option.description for option in question.choices}
        return {"type": "choice", "instructions": instructions, "criteria": criteria}
    criteria = [
        level.label if level.description is None else f"{level.label}: {level.description}"
        for level in question.levels
    ]
    return {"type": "score", "instructions": instructions, "criteria": criteria}


def _word(value: bool | str) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _rendered(asked: DecisionRequest, response: Response, metadata_key: str) -> bytes:
    plain = response_to(response, metadata_key=metadata_key)
    usage, cache = response.usage, response.metadata["prefix_cache"]
    plain["answers"] = [
        _answer(question, answer, plain["answers"][name])
        for question, (name, answer) in zip(asked.questions, response.answers.items(), strict=True)
    ]
    plain["usage"] = {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": cache["hit_tokens"], "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    return msgspec.json.encode(plain)


def _answer(question: QuestionParam, answer: object, plain: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(question, PredicateParam):
        body: dict[str, Any] = {"type": "predicate", "name": question.name}
        if isinstance(answer, NoulAnswer):
            body["probability"] = answer.noul
    elif isinstance(question, ChoiceParam):
        values = {_word(option.value): option.value for option in question.choices}
        body = {"type": "choice", "name": question.name}
        if isinstance(answer, ChoiceAnswer):
            body["choice"] = values[answer.choice]
        body["probabilities"] = [
            {"value": values[word], "probability": probability}
            for word, probability in plain["probabilities"].items()
        ]
        body["confidence"] = plain["confidence"]
    else:
        labels = [level.label for level in question.levels]
        body = {"type": "score", "name": question.name, "score": plain["score"]}
        body["probabilities"] = [
            {"value": place, "label": label, "probability": probability}
            for place, (label, probability) in enumerate(
                zip(labels, plain["probabilities"].values(), strict=True)
            )
        ]
        body["confidence"] = plain["confidence"]
    body |= {key: value for key, value in plain.items() if key.startswith("x_")}
    return body


def _relocated(detail: Detail) -> Detail:
    """The detail at its place in this route's spelling."""
    loc = list(detail.loc)
    if loc[:2] == ["body", "state"]:
        loc[1] = "input"
    if len(loc) > 2 and loc[1] == "questions":
        loc[2] = int(loc[2])
        if len(loc) > 4:
            loc[4] = _FIELDS.get((str(loc[3]), str(loc[4])), loc[4])
        if len(loc) > 3:
            loc[3] = _WORDS.get(str(loc[3]), loc[3])
    return Detail(loc=tuple(loc), msg=detail.msg, type=detail.type, input=detail.input)


def _refused(loc: tuple[str | int, ...], msg: str, kind: str) -> InvalidRequest:
    return InvalidRequest(Detail(loc=("body", *loc), msg=msg, type=kind))
