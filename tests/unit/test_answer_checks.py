"""What the benchmark accepts as an answer, and that it notices each way to be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.families import ModelCard
from adjudge.families.open_jev import OpenJev
from adjudge.proof.answers import AnswerCheck, WrongAnswer
from adjudge.proof.workloads import Case
from adjudge.wire import encode_response, request_from

CASE = Case(
    "c",
    "g",
    {
        "state": "s",
        "questions": {
            "n": {"type": "noul", "instructions": "?"},
            "c": {"type": "choice", "criteria": {"a": None, "b": "text"}},
            "s": {"type": "score", "criteria": ["low", {"x": 1}, "high"]},
        },
    },
)
GOOD: dict[str, Any] = {
    "model": "m",
    "answers": {
        "n": {"type": "noul", "noul": 0.5, "x_more": 1},
        "c": {
            "type": "choice",
            "choice": "b",
            "probabilities": {"a": 0.25, "b": 0.75},
            "confidence": 0.5,
        },
        "s": {
            "type": "score",
            "score": 1.25,
            "legend": {"0": "low", "1": {"x": 1}, "2": "high"},
            "probabilities": {"0": 0.25, "1": 0.25, "2": 0.5},
            "confidence": 0.1,
        },
    },
    "usage": {"input_tokens": 12, "output_tokens": 0},
}


def changed(*path: str, to: Any) -> Callable[[], bytes]:
    def body() -> bytes:
        made = json.loads(json.dumps(GOOD))
        inner = made
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to
        return json.dumps(made).encode()

    return body


def test_a_right_response_passes() -> None:
    checked = AnswerCheck().check(CASE, json.dumps(GOOD).encode())
    assert (checked.model, checked.input_tokens) == ("m", 12)
    assert json.loads(checked.answers_json) == GOOD["answers"]


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda: b"", "not a response"),
        (lambda: b"\xff", "not a response"),
        (changed("usage", to={}), "input_tokens"),
        (changed("answers", to={}), "answers \\[\\] to questions"),
        (changed("answers", "n", to={"type": "noul"}), "noul"),
        (changed("answers", "n", "noul", to="0.5"), "Expected `float`"),
        (changed("answers", "n", "noul", to=-0.01), "noul is -0.01"),
        (changed("answers", "n", "noul", to=None), "Expected `float`"),
        (changed("answers", "n", to=GOOD["answers"]["c"]), "a choice answer to a noul question"),
        (changed("answers", "c", "choice", to="a"), "'a' is not the most probable"),
        (changed("answers", "c", "choice", to="z"), "'z' is not the most probable"),
        (changed("answers", "c", "confidence", to=1.5), "confidence is 1.5"),
        (changed("answers", "c", "probabilities", to={"b": 0.75, "a": 0.25}), "options"),
        (changed("answers", "c", "probabilities", "b", to=0.74), "sum to 0.99"),
        (changed("answers", "c", "probabilities", "b", to=float("nan")), "not a response"),
        (changed("answers", "s", "probabilities", to={"0": 0.25, "2": 0.75}), "levels"),
        (changed("answers", "s", "legend", "1", to="mid"), "legend"),
        (changed("answers", "s", "score", to=1.24), "its expectation is 1.25"),
    ],
)
def test_a_wrong_response_is_noticed(body: Callable[[], bytes], message: str) -> None:
    with pytest.raises(WrongAnswer, match=message):
        AnswerCheck().check(CASE, body())


def test_rounded_answers_pass_within_a_tolerance() -> None:
    body = changed("answers", "c", "probabilities", to={"a": 0.333, "b": 0.666})()
    with pytest.raises(WrongAnswer, match="sum to"):
        AnswerCheck().check(CASE, body)
    AnswerCheck(2e-3).check(CASE, body)


@given(st.lists(st.floats(-30, 30, width=32), min_size=6, max_size=6))
def test_every_answer_of_ours_passes(logits: list[float]) -> None:
    family = OpenJev(ModelCard(name="m", family="open_jev", calibration={"temperature": 1.7}))
    compiled = family.compile(request_from(CASE.request))
    response = family.answer(compiled, [[logit] for logit in logits], [1] * 6, {})
    AnswerCheck(1e-12).check(CASE, encode_response(response))
