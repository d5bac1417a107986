"""JEV-27B-VL, text: a raw prompt per question, read at the labels of its kind.

A logit is the FP32 product with the label's row, plus the bias of its slot, over the kind's
temperature. Slots: noul 0 and 1 (false, true), score 2 to 7 (0 … 5), choice 8 to 23 (A … P);
labels of a choice beyond the sixteenth carry no bias.

The model was trained on one question text and bare options for nouls and scores. What a System
One request describes beyond that is appended to the question, a line each: `true: …`,
`false: …`, or `0: …` to `5: …`; levels that are just "0" … "5" add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adjudge.errors import CheckpointError
from adjudge.families import Compiled, Encoder, Limits, ModelCard, Prompt, Readout
from adjudge.families.about import About, Release
from adjudge.families.answers import choice_answer, score_answer
from adjudge.families.calibration import (
    checked_temperature,
    choice_confidence,
    score_confidence,
    softmax,
)
from adjudge.families.labels import (
    answer_each,
    checked_label_ids,
    letter_labels,
    one_prompt_each,
)
from adjudge.families.limits import card_names, check_request
from adjudge.families.text import plain_text
from adjudge.wire import (
    Answer,
    Choice,
    Noul,
    NoulAnswer,
    Question,
    Request,
    Response,
    Score,
    Usage,
    kind_of,
)

KINDS = ("noul", "score", "choice")
SIDES = ("false", "true")
LEVELS = ("0", "1", "2", "3", "4", "5")
NUM_TRAINED = 16
NUM_LABELS = 256
NUM_SLOTS = len(SIDES) + len(LEVELS) + NUM_TRAINED

# Cut between a line feed and a bracket, which no token crosses (see open_jev).
CLOSING = "[decision]:"


class JevVl:
    """The family on one checkpoint.

    card.calibration: {"temperatures": {noul, score, choice}, "verbalizer_ids": 24 token ids,
    "biases": 24 numbers}, both in slot order.
    """

    about = About(
        prompts="one a question, raw text without a chat turn",
        labels="A to Z, then AA …, or false and true, or 0 to 5, in FP32, with a bias for each "
        "of the 24 that were trained; a temperature for each kind",
        empty="a null description gives the key alone, an empty one `key: `; a null side of a noul "
        "adds no line to the question, an empty one `true: ` or `false: `",
        folder="a model with `calibration.json`, and in `adapter_vllm/` a PEFT adapter that also "
        "changes the LM head, with `decision_head.json`",
        releases=(
            Release(
                name="autotrust/JEV-27B-VL",
                revision="f34b598d4ef4bcefd337bee8d8e7ddd3b7733ccc",
                geometry="27b",
            ),
        ),
        decide=True,
    )

    def __init__(self, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> None:
        self.card = card
        self.limits = self.limits_for(card) if limits is None else limits
        labels = letter_labels(encoder, NUM_LABELS, "x\n{}) y")
        self._letters = list(labels)
        named = checked_label_ids(encoder, [*SIDES, *LEVELS, *self._letters[:NUM_TRAINED]], CLOSING)
        slots = _slots(card)
        if tuple(slots) != named:
            raise CheckpointError(
                f"{card.name}: decision_head.json names other tokens than this tokenizer gives "
                "false, true, 0 to 5 and A to P; the two do not belong together"
            )
        self._ids = {
            "noul": named[:2],
            "score": named[2:8],
            "choice": tuple(labels.values()),
        }
        biases = list(slots.values())
        self._biases = {
            "noul": biases[:2],
            "score": biases[2:8],
            "choice": [*biases[8:], *[0.0] * (NUM_LABELS - NUM_TRAINED)],
        }
        temperatures = card.calibration.get("temperatures", {})
        self._temperatures = {
            kind: checked_temperature(
                temperatures.get(kind), f"{card.name}: calibration.json, {kind}"
            )
            for kind in KINDS
        }
        self.names = card_names(card)

    @classmethod
    def build(cls, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> JevVl:
        return cls(card, encoder, limits)

    @classmethod
    def limits_for(cls, card: ModelCard) -> Limits:
        return Limits(
            min_options=2,
            max_options=NUM_LABELS,
            min_levels=len(LEVELS),
            max_levels=len(LEVELS),
            max_prompt_tokens=16_384,
        )

    def compile(self, request: Request) -> Compiled:
        check_request(request, self.limits, self.names)
        state = plain_text(request.state)
        prompts: list[Prompt] = []
        for name, question in request.questions.items():
            kind, asked, lines = self._spelled(question)
            options = "".join(f"{line}\n" for line in lines)
            segments = (
                f"[kind] {kind}\n[state] {state}\n",
                f"[question] {asked}\n[options]\n{options}",
                CLOSING,
            )
            readout = Readout(self._ids[kind][: len(lines)], mass=request.diagnostics)
            prompts.append(Prompt(segments, readout, name))
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
            metadata={"temperatures": self._temperatures, **metadata},
        )

    def _answer(self, question: Question, logits: list[float], extra: dict[str, Any]) -> Answer:
        kind = kind_of(question)
        biased = [value + bias for value, bias in zip(logits, self._biases[kind], strict=False)]
        p = softmax(biased, self._temperatures[kind])
        if isinstance(question, Noul):
            return NoulAnswer(noul=p[1], extra=extra)
        if isinstance(question, Choice):
            return choice_answer(question, p, confidence=choice_confidence(p), extra=extra)
        return score_answer(question, p, confidence=score_confidence(p), extra=extra)

    def _spelled(self, question: Question) -> tuple[str, str, list[str]]:
        """Kind, question text and option lines."""
        asked = plain_text(question.instructions)
        if isinstance(question, Choice):
            options = [
                key if text is None else f"{key}: {plain_text(text)}"
                for key, text in question.criteria.items()
            ]
            lettered = zip(self._letters, options, strict=False)
            return "choice", asked, [f"{letter}) {option}" for letter, option in lettered]
        if isinstance(question, Score):
            levels = [plain_text(level) for level in question.criteria]
            if tuple(levels) != LEVELS:
                asked = _with_lines(asked, zip(LEVELS, levels, strict=True))
            return "score", asked, list(LEVELS)
        if question.criteria is not None:
            sides = (("true", question.criteria.true), ("false", question.criteria.false))
            given = [(side, plain_text(text)) for side, text in sides if text is not None]
            asked = _with_lines(asked, given)
        return "noul", asked, list(SIDES)


def _slots(card: ModelCard) -> dict[int, float]:
    """Token id -> bias of each slot, in slot order."""
    ids = card.calibration.get("verbalizer_ids", ())
    biases = card.calibration.get("biases", ())
    numbers = all(
        isinstance(bias, float | int) and not isinstance(bias, bool) and math.isfinite(bias)
        for bias in biases
    )
    if not (len(ids) == len(set(ids)) == len(biases) == NUM_SLOTS) or not numbers:
        raise CheckpointError(
            f"{card.name}: decision_head.json must give {NUM_SLOTS} different token ids and as "
            f"many finite biases; it gives {len(ids)} and {len(biases)}"
        )
    return {int(token): float(bias) for token, bias in zip(ids, biases, strict=True)}


def _with_lines(asked: str, described: Any) -> str:
    lines = [f"{label}: {text}" for label, text in described]
    return "\n".join([asked, *lines] if asked else lines)
