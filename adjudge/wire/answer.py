"""The types of a response, and their JSON. Probabilities and scores are finite Python floats.

Whatever goes beyond the official shape carries a key that starts with `x_`: per answer in
`extra`, per response in `metadata`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import NotFinite
from adjudge.wire.request import Text


class NoulAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="noul"):
    """noul: probability of yes, 0 to 1."""

    noul: float
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ChoiceAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """choice: the most probable option; probabilities: option -> 0 to 1, in request order."""

    choice: str
    probabilities: dict[str, float]
    confidence: float
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """score: expected level; legend and probabilities: "0", "1", … -> level text, 0 to 1."""

    score: float
    legend: dict[str, Text]
    probabilities: dict[str, float]
    confidence: float
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)


Answer = NoulAnswer | ChoiceAnswer | ScoreAnswer


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    output_tokens: int = 0


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of one request, keyed and ordered as its questions."""

    model: str
    answers: dict[str, Answer]
    usage: Usage
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


def response_to(response: Response, *, metadata_key: str = "x_metadata") -> dict[str, Any]:
    """The response as JSON-ready dicts, order kept. `metadata` is left out where it is empty.

    Raises NotFinite if a number of an answer is not finite: no such answer may leave.
    """
    body: dict[str, Any] = {
        "model": response.model,
        "answers": {name: _answer_to(answer) for name, answer in response.answers.items()},
        "usage": {
            "input_tokens": response.usage.input_tokens,
            "output_tokens": response.usage.output_tokens,
        },
    }
    if response.metadata:
        body[metadata_key] = dict(response.metadata)
    return body


def encode_response(response: Response, *, metadata_key: str = "x_metadata") -> bytes:
    """`response_to` as UTF-8 JSON; every float in its shortest form that reads back equal."""
    return msgspec.json.encode(response_to(response, metadata_key=metadata_key))


def _answer_to(answer: Answer) -> dict[str, Any]:
    body: dict[str, Any]
    if isinstance(answer, NoulAnswer):
        body = {"type": "noul", "noul": answer.noul}
    elif isinstance(answer, ChoiceAnswer):
        body = {
            "type": "choice",
            "choice": answer.choice,
            "probabilities": answer.probabilities,
            "confidence": answer.confidence,
        }
    else:
        body = {
            "type": "score",
            "score": answer.score,
            "legend": answer.legend,
            "probabilities": answer.probabilities,
            "confidence": answer.confidence,
        }
    body.update(answer.extra)
    if not all(_is_finite(value) for key, value in body.items() if key != "legend"):
        raise NotFinite
    return body


def _is_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
