"""POST /v1/decide, JEV-VL's own body: one decision, {kind, state, question, options}.

It becomes a request with one question, and the answer becomes probabilities in option order. A
state that is an array is a list of parts, whose texts are joined as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from adjudge.errors import Detail, InvalidRequest
from adjudge.wire.answer import ChoiceAnswer, NoulAnswer, Response
from adjudge.wire.request import Request, Text
from adjudge.wire.strict_json import decode_json
from adjudge.wire.validate import typed_request

QUESTION = "question"
"""The name of the one question that a decide body asks."""
PROTOCOL = "jev27-bare-v1"
NUM_TRAINED_OPTIONS = 16
LEVELS = ["0", "1", "2", "3", "4", "5"]
KINDS = ("noul", "score", "choice")
_FIELDS: dict[object, str] = {"instructions": "question", "criteria": "options"}


def parse_decide(body: bytes) -> Request:
    """The request that a decide body stands for. Raises InvalidRequest."""
    value = decode_json(body)
    if not isinstance(value, dict):
        raise _refused((), "must be an object", "object_type")
    kind, asked = value.get("kind"), value.get("question")
    if kind not in KINDS:
        raise _refused(("kind",), f"must be one of {', '.join(KINDS)}", "literal_error")
    if not isinstance(asked, str):
        raise _refused(("question",), "must be a string", "string_type")
    question: dict[str, Any] = {"type": kind, "instructions": asked}
    if kind == "score":
        question["criteria"] = LEVELS
    elif kind == "choice":
        question["criteria"] = dict.fromkeys(_options(value.get("options")))
    request = {
        "state": _state(value.get("state", "")),
        "questions": {QUESTION: question},
        "model": value.get("model"),
        "cache_salt": value.get("cache_salt"),
    }
    try:
        return typed_request(request)
    except InvalidRequest as exc:
        raise InvalidRequest(*map(decide_detail, exc.details)) from None


def decide_to(request: Request, response: Response) -> dict[str, Any]:
    """The body that answers a decide request, JSON-ready."""
    answer = response.answers[QUESTION]
    if isinstance(answer, NoulAnswer):
        kind, probabilities = "noul", {"false": 1.0 - answer.noul, "true": answer.noul}
    else:
        kind = "choice" if isinstance(answer, ChoiceAnswer) else "score"
        probabilities = answer.probabilities
    options, values = list(probabilities), list(probabilities.values())
    best = values.index(max(values))
    tokens = response.usage.input_tokens
    native = kind != "choice" or len(options) <= NUM_TRAINED_OPTIONS
    served_as = response.metadata.get("served_as")
    return {
        "kind": kind,
        "effective_kind": kind,
        "options": options,
        "probabilities": values,
        "choice_index": best,
        "choice": options[best],
        "adaptation": "native" if native else "wide-labels",
        "protocol": PROTOCOL,
        "model": response.model,
        "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
        "num_model_requests": 1,
        "elapsed_seconds": response.metadata.get("inference_seconds", 0.0),
        **({} if served_as is None else {"x_served_as": served_as}),
    }


def _options(options: Any) -> list[str]:
    at = ("options",)
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise _refused(at, "a choice needs options: an array of strings", "list_type")
    if len(set(options)) != len(options):
        raise _refused(at, "two options are the same text; send each once", "duplicate_option")
    return options


def _state(state: Any) -> Text:
    if not isinstance(state, list):
        return state  # type: ignore[no-any-return]  # typed_request judges it
    texts: list[str] = []
    for place, part in enumerate(state):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str):
            raise _refused(
                ("state", place), "the loaded model reads text parts only", "part_unsupported"
            )
        texts.append(text)
    return "".join(texts)


def decide_detail(detail: Detail) -> Detail:
    """The place in this body of what is wrong in the question made from it."""
    if detail.loc[:2] != ("body", "questions"):
        return detail
    field = detail.loc[4] if len(detail.loc) > 4 else None
    return replace(detail, loc=("body", _FIELDS.get(field, "kind")))


def _refused(at: tuple[str | int, ...], message: str, kind: str) -> InvalidRequest:
    return InvalidRequest(Detail(loc=("body", *at), msg=message, type=kind))
