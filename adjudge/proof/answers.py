"""Checks every answer that a server gives: types, names, ranges, sums, argmax, expectation.

Knows the wire and nothing of a model, so it holds for any System One server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from adjudge.proof.workloads import Case
from adjudge.wire import ChoiceAnswer, NoulAnswer, ScoreAnswer

AnyAnswer = NoulAnswer | ChoiceAnswer | ScoreAnswer


class _Usage(msgspec.Struct):
    input_tokens: int


class _Body(msgspec.Struct):
    model: str
    answers: msgspec.Raw
    usage: _Usage


@dataclass(frozen=True, slots=True)
class Checked:
    """A response that passed. answers_json: the bytes of its answers, as they were sent."""

    model: str
    answers_json: bytes
    input_tokens: int


class WrongAnswer(Exception):
    """An answer that cannot be right; says what is wrong with it."""


_BODY = msgspec.json.Decoder(_Body)
_ANSWERS = msgspec.json.Decoder(dict[str, AnyAnswer])


class AnswerCheck:
    """tolerance: by how much a sum may miss 1, and a score its expectation per level."""

    def __init__(self, tolerance: float = 1e-6) -> None:
        self._tolerance = tolerance

    def check(self, case: Case, body: bytes) -> Checked:
        """A response's body to this case's request. Raises WrongAnswer."""
        try:
            decoded = _BODY.decode(body)
            answers = _ANSWERS.decode(decoded.answers)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WrongAnswer(f"not a response of this wire: {error}") from None
        questions = case.request["questions"]
        if list(answers) != list(questions):
            raise WrongAnswer(f"answers {list(answers)} to questions {list(questions)}")
        for name, question in questions.items():
            try:
                self._check_one(question, answers[name])
            except WrongAnswer as error:
                raise WrongAnswer(f"{name!r}: {error}") from None
        return Checked(decoded.model, bytes(decoded.answers), decoded.usage.input_tokens)

    def _check_one(self, question: Mapping[str, Any], answer: AnyAnswer) -> None:
        kind = type(answer).__struct_config__.tag
        if kind != question["type"]:
            raise WrongAnswer(f"a {kind} answer to a {question['type']} question")
        if isinstance(answer, NoulAnswer):
            _within_one(answer.noul, "noul")
            return
        _within_one(answer.confidence, "confidence")
        probabilities = list(answer.probabilities.values())
        for p in probabilities:
            _within_one(p, "a probability")
        total = math.fsum(probabilities)
        if abs(total - 1) > self._tolerance:
            raise WrongAnswer(f"probabilities sum to {total!r}")
        if isinstance(answer, ChoiceAnswer):
            _check_choice(answer, list(question["criteria"]))
        else:
            self._check_score(answer, question["criteria"])

    def _check_score(self, answer: ScoreAnswer, levels: Sequence[Any]) -> None:
        names = [str(i) for i in range(len(levels))]
        if list(answer.probabilities) != names:
            raise WrongAnswer(f"probabilities of {list(answer.probabilities)}, levels {names}")
        if answer.legend != dict(zip(names, levels, strict=True)):
            raise WrongAnswer("the legend is not the question's levels")
        expected = math.fsum(i * p for i, p in enumerate(answer.probabilities.values()))
        if abs(answer.score - expected) > self._tolerance * len(levels):
            raise WrongAnswer(f"score {answer.score!r}, and its expectation is {expected!r}")


def _check_choice(answer: ChoiceAnswer, options: list[str]) -> None:
    if list(answer.probabilities) != options:
        raise WrongAnswer(f"probabilities of {list(answer.probabilities)}, options {options}")
    best = max(answer.probabilities.values())
    if answer.probabilities.get(answer.choice) != best:
        raise WrongAnswer(f"choice {answer.choice!r} is not the most probable option")


def _within_one(value: float, what: str) -> None:
    if not 0 <= value <= 1:
        raise WrongAnswer(f"{what} is {value!r}")
