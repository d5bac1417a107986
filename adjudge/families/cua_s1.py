"""Cua-S1 4B 0.2, text: which of up to 26 lettered actions comes next (choice only).

One prompt per question: a chat turn that leaves the thinking block open, read at the letters A …
Z. Logits are rounded as the model's own head gives them; no temperature, nothing rounded after.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adjudge.families import Compiled, Encoder, Limits, ModelCard, Prompt, Readout
from adjudge.families.about import About, Release
from adjudge.families.answers import choice_answer
from adjudge.families.calibration import entropy_certainty, softmax
from adjudge.families.chat import check_chat
from adjudge.families.labels import answer_each, checked_label_ids, one_prompt_each
from adjudge.families.limits import card_names, check_request
from adjudge.families.text import json_text, plain_text
from adjudge.wire import Choice, ChoiceAnswer, Request, Response, Text, Usage

SYSTEM = (
    "You are a one-pass computer-use decision model. You are shown the current state of a screen "
    "and a fixed, closed list of candidate (element, action) options, each given a single letter. "
    "Choose exactly one option: the single best next action to take. Answer with ONLY that "
    "option's letter -- no words, no punctuation, no explanation."
)

# Cut between a line feed and a letter only, which no token crosses (see open_jev).
OPENING = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
TASK = "App: Cua Driver\nTask family: closed-candidate decision\n\nAccessibility tree:\n"
CLOSING = "Answer with a single letter.<|im_end|>\n<|im_start|>assistant\n<think>\n"


class CuaS1:
    """The family on one checkpoint. card.calibration: nothing."""

    about = About(
        prompts="one a question, in a chat turn that leaves the thinking block open",
        labels="the letters A to Z, rounded as the model's own head rounds; no temperature",
        empty="null, empty, `[]` or `{}` instructions drop the line of the goal; a null "
        'description becomes its key, an empty one stays empty; an empty state is read as `""`',
        folder="a PEFT adapter in `text/`",
        releases=(
            Release(
                name="cua-ai/cua-s1-4b-0.2",
                revision="16818868b0cc7813808aae4e87b417657046ab79",
                geometry="4b",
                base="Qwen/Qwen3.5-4B",
                base_revision="851bf6e806efd8d0a36b00ddf55e13ccb7b8cd0a",
            ),
        ),
    )

    def __init__(self, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> None:
        self.card = card
        self.limits = self.limits_for(card) if limits is None else limits
        check_chat(encoder, card, f"{OPENING}{CLOSING}")
        self._ids = checked_label_ids(encoder, string.ascii_uppercase, CLOSING)
        revision = "" if card.revision is None else f"@{card.revision}"
        self._model = f"{card.name}{revision}:text"
        self.names = [*card_names(card), "cua-s1-4b-0.2", self._model]

    @classmethod
    def build(cls, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> CuaS1:
        return cls(card, encoder, limits)

    @classmethod
    def limits_for(cls, card: ModelCard) -> Limits:
        return Limits(
            answers=("choice",), max_options=26, max_questions=64, max_prompt_tokens=16_384
        )

    def compile(self, request: Request) -> Compiled:
        check_request(request, self.limits, self.names)
        state = plain_text(request.state) if request.state else json_text(request.state)
        screen = f"{TASK}{state}\n\n"
        prompts = (
            Prompt(
                (f"{OPENING}{_goal(question.instructions)}", screen, _options(question)),
                Readout(self._ids[: len(question.criteria)], True, request.diagnostics),
                name,
                num_state_segments=2,
            )
            for name, question in request.questions.items()
            if isinstance(question, Choice)
        )
        return one_prompt_each(request, prompts)

    def answer(
        self,
        compiled: Compiled,
        logits: Sequence[np.ndarray],
        prompt_tokens: Sequence[int],
        metadata: Mapping[str, Any],
    ) -> Response:
        return Response(
            model=self._model,
            answers=answer_each(compiled, logits, _answer),
            usage=Usage(input_tokens=sum(prompt_tokens)),
            metadata=metadata,
        )


def _answer(question: Choice, logits: list[float], extra: dict[str, Any]) -> ChoiceAnswer:
    p = softmax(logits)
    return choice_answer(question, p, confidence=entropy_certainty(p), extra=extra)


def _goal(instructions: Text | None) -> str:
    return f"Goal: {plain_text(instructions)}\n\n" if instructions else ""


def _options(question: Choice) -> str:
    """The lettered options, each label as JSON text without its outer quotes."""
    lines = []
    for letter, (key, described) in zip(
        string.ascii_uppercase, question.criteria.items(), strict=False
    ):
        label = key if described is None else plain_text(described)
        lines.append(f'{letter}. Decision "{json_text(label)[1:-1]}" -> select\n')
    return f"Options:\n{''.join(lines)}\n{CLOSING}"
