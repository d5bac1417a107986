"""JEMM, text: one lettered candidate list per question, 2 to 32 candidates.

A choice's candidates are its descriptions, a score's its levels, a noul's yes and no. One
prompt per question in a chat turn with a closed thinking block, one temperature for all kinds;
confidence is the largest probability.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adjudge.families import Compiled, Encoder, Limits, ModelCard, Prompt, Readout
from adjudge.families.about import About, Release
from adjudge.families.answers import choice_answer, score_answer
from adjudge.families.calibration import checked_temperature, level_mean, softmax
from adjudge.families.chat import ANSWER_TURN, check_chat
from adjudge.families.labels import answer_each, checked_label_ids, one_prompt_each
from adjudge.families.limits import card_names, check_request
from adjudge.wire import (
    Answer,
    Choice,
    Noul,
    NoulAnswer,
    Question,
    Request,
    Response,
    Score,
    Text,
    Usage,
)

SYSTEM = (
    "Choose the best available candidate for the question using only the supplied state. Return "
    "exactly one candidate label."
)
LABELS = f"{string.ascii_uppercase}012345"

# Cut between a line feed and a letter only, which no token crosses (see open_jev).
OPENING = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nState:\n"
CLOSING = f"Answer with exactly one candidate label.{ANSWER_TURN}"


class Jemm:
    """The family on one checkpoint. card.calibration: {"temperature": finite, above 0}."""

    about = About(
        prompts="one a question, in a chat turn with a closed thinking block",
        labels="the letters A to Z, then 0 to 5, in FP32; one temperature for all kinds",
        empty="a null or empty description becomes its key, an empty level `level N`, N from 0, an "
        "empty side `yes` or `no`: a candidate is never blank",
        folder="a PEFT adapter beside `decision_config.json`",
        releases=(
            Release(
                name="MaestroYan/JEMM",
                revision="76e3c209e8441fa658221c7ba2725bad2f811176",
                geometry="27b",
                base="Qwen/Qwen3.8-27B",
                base_revision="1d4bf0f2ff6012fd82039f2fa52739d0dd7c60c0",
            ),
        ),
        adapter="unmerged",
    )

    def __init__(self, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> None:
        self.card = card
        self.limits = self.limits_for(card) if limits is None else limits
        check_chat(encoder, card, f"{OPENING}{CLOSING}")
        self._ids = checked_label_ids(encoder, LABELS, CLOSING)
        self._temperature = checked_temperature(
            card.calibration.get("temperature"), f"{card.name}: decision_config.json"
        )
        self.names = [*card_names(card), "jemm"]

    @classmethod
    def build(cls, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> Jemm:
        return cls(card, encoder, limits)

    @classmethod
    def limits_for(cls, card: ModelCard) -> Limits:
        return Limits(
            max_questions=64,
            min_options=2,
            max_options=len(LABELS),
            min_levels=2,
            max_levels=len(LABELS),
            max_prompt_tokens=8192,
        )

    def compile(self, request: Request) -> Compiled:
        check_request(request, self.limits, self.names)
        context = f"{OPENING}{_state(request.state)}\n\n"
        prompts: list[Prompt] = []
        for name, question in request.questions.items():
            candidates = _candidates(question)
            lines = [f"{label}) {text}\n" for label, text in zip(LABELS, candidates, strict=False)]
            asked = f"Question: {_flat(question.instructions)}\n\n"
            readout = Readout(self._ids[: len(candidates)], mass=request.diagnostics)
            listed = f"Candidates:\n{''.join(lines)}\n{CLOSING}"
            prompts.append(Prompt((context, asked, listed), readout, name))
        return one_prompt_each(request, prompts)

    def answer(
        self,
        compiled: Compiled,
        logits: Sequence[np.ndarray],
        prompt_tokens: Sequence[int],
        metadata: Mapping[str, Any],
    ) -> Response:
        return Response(
            model=self.card.name,
            answers=answer_each(compiled, logits, self._answer),
            usage=Usage(input_tokens=sum(prompt_tokens)),
            metadata={"temperature": self._temperature, **metadata},
        )

    def _answer(self, question: Question, logits: list[float], extra: dict[str, Any]) -> Answer:
        p = softmax(logits, self._temperature)
        if isinstance(question, Noul):
            return NoulAnswer(noul=p[0], extra=extra)
        if isinstance(question, Choice):
            return choice_answer(question, p, confidence=max(p), extra=extra)
        return score_answer(
            question, p, confidence=max(p), extra={"x_expected_value": level_mean(p), **extra}
        )


def _state(state: Text) -> str:
    if not isinstance(state, str):
        state = json.dumps(state, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return state.strip()


def _flat(value: Text | None) -> str:
    """Python's str() with every run of white space as one space; nothing for None."""
    return "" if value is None else " ".join(str(value).split())


def _candidates(question: Question) -> list[str]:
    """The candidates' texts. One without text of its own is named: a candidate is never blank."""
    if isinstance(question, Choice):
        return [_flat(text) or _flat(key) for key, text in question.criteria.items()]
    if isinstance(question, Score):
        return [_flat(text) or f"level {level}" for level, text in enumerate(question.criteria)]
    sides = question.criteria
    if sides is None:
        return ["yes", "no"]
    return [_flat(sides.true) or "yes", _flat(sides.false) or "no"]
