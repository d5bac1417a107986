"""Open-Jev: one prompt per candidate, a scoring head at its last token, one temperature.

Each candidate is put to the model as a yes/no proposal in a chat turn with a closed thinking
block; a question's logits are its candidates' scores, a noul's are [0, score]. The probability
is softmax(logits / T) over the complete question in float64, and nothing is rounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adjudge.errors import ConfigError
from adjudge.families import Compiled, Encoder, Limits, ModelCard, Prompt, Readout
from adjudge.families.about import About, Release
from adjudge.families.answers import choice_answer, score_answer
from adjudge.families.calibration import (
    checked_temperature,
    choice_confidence,
    score_confidence,
    softmax,
)
from adjudge.families.chat import ANSWER_TURN, check_chat
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

METHOD = "independent_candidate_lora_nll_brier"
MAX_PROMPT_TOKENS = 16_384

# A prompt is OPENING state "\n\n" | QUESTION | " " question "\n" | PROPOSAL | " " option "\n" |
# the closing question. Every cut lies between a line feed and a letter, or between a colon and
# a space. The tokenizer's split pattern ends a piece at both whatever surrounds them, no special
# token holds white space, and no character after a cut composes with the one before it under
# NFC; so the segments' ids joined are the ids of the whole text. The reference strips the text
# of the turn, which does nothing: it starts with a letter and ends with a full stop.
OPENING = "<|im_start|>user\nContext:\n"
QUESTION = "Question:"
PROPOSAL = "Proposed answer:"
PROPOSAL_CLOSING = f"Is this proposed answer correct? Answer Yes or No.{ANSWER_TURN}"
NOUL_CLOSING = f"Is the answer to this question yes? Answer Yes or No.{ANSWER_TURN}"

_READOUT = Readout()


class OpenJev:
    """The family on one checkpoint. card.calibration: {"temperature": finite, above 0}."""

    about = About(
        prompts="one a candidate, or one a noul, in a chat turn with a closed thinking block",
        labels="a scoring head of one row, in FP32; one temperature for all kinds",
        empty="without instructions, nothing; a null description gives the key alone, an empty one "
        "`key: `",
        folder="`package/checkpoint/`: `model.json`, `head.pt`, `temperature.json` and a PEFT "
        "adapter in `adapter/`",
        releases=tuple(
            Release(
                name=f"ZefanCai/Open-Jev-{size}",
                revision=revision,
                geometry=size.partition("-")[0].lower(),
                base=base,
                base_revision=base_revision,
            )
            for size, revision, base, base_revision in (
                ("2B", "0c7aa498b1627be8da4acf34c863ff0ee0a92785",
                 "Qwen/Qwen3.5-2B", "15852e8c16360a2fea060d615a32b45270f8a8fc"),
                ("9B", "47e966881e489511c0c7f5633a9e1960a676a551",
                 "Qwen/Qwen3.5-9B", "c202236235762e1c871ad0ccb60c8ee5ba337b9a"),
                ("27B-v1.1", "28cf73067d5b337860bbef3c85b8b82ba8730956",
                 "Qwen/Qwen3.8-27B", "1d4bf0f2ff6012fd82039f2fa52739d0dd7c60c0"),
            )
        ),
    )  # fmt: skip

    def __init__(self, card: ModelCard, limits: Limits | None = None) -> None:
        self.card = card
        self.limits = self.limits_for(card) if limits is None else limits
        if self.limits.max_prompt_tokens > MAX_PROMPT_TOKENS:
            raise ConfigError(
                f"max_prompt_tokens is {self.limits.max_prompt_tokens}; Open-Jev accepts 1 to "
                f"{MAX_PROMPT_TOKENS}"
            )
        self._temperature = checked_temperature(
            card.calibration.get("temperature"), f"{card.name}: temperature.json"
        )
        self.names = [*card_names(card), "open-jev"]
        if card.base is not None:
            self.names.append(card.base)

    @classmethod
    def build(cls, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> OpenJev:
        check_chat(encoder, card, f"{OPENING}{PROPOSAL_CLOSING}")
        return cls(card, limits)

    @classmethod
    def limits_for(cls, card: ModelCard) -> Limits:
        return Limits(max_prompt_tokens=card.max_prompt_tokens)

    def compile(self, request: Request) -> Compiled:
        check_request(request, self.limits, self.names)
        context = f"{OPENING}{render(request.state)}\n\n"
        prompts: list[Prompt] = []
        questions: dict[str, range] = {}
        for name, question in request.questions.items():
            start = len(prompts)
            for segments in _question_segments(question):
                prompts.append(Prompt((context, *segments), _READOUT, name))
            questions[name] = range(start, len(prompts))
        return Compiled(request, tuple(prompts), questions)

    def answer(
        self,
        compiled: Compiled,
        logits: Sequence[np.ndarray],
        prompt_tokens: Sequence[int],
        metadata: Mapping[str, Any],
    ) -> Response:
        answers = {
            name: self._answer(question, [float(logits[i][0]) for i in compiled.questions[name]])
            for name, question in compiled.request.questions.items()
        }
        facts = {
            "method": METHOD,
            "temperature": self._temperature,
            "candidate_sequences": len(compiled.prompts),
            "base_revision": self.card.base_revision,
            "max_length": self.limits.max_prompt_tokens,
            **metadata,
        }
        usage = Usage(input_tokens=sum(prompt_tokens))
        return Response(model=self.card.name, answers=answers, usage=usage, metadata=facts)

    def _answer(self, question: Question, scores: list[float]) -> Answer:
        if isinstance(question, Noul):
            return NoulAnswer(noul=softmax([0.0, *scores], self._temperature)[1])
        p = softmax(scores, self._temperature)
        if isinstance(question, Choice):
            return choice_answer(question, p, confidence=choice_confidence(p))
        return score_answer(question, p, confidence=score_confidence(p))


def render(value: Text) -> str:
    """A string as it is; anything else as sorted JSON, default separators, nothing escaped that
    need not be."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def _question_segments(question: Question) -> list[tuple[str, ...]]:
    """The segments after the context, one tuple per candidate."""
    asked = "" if question.instructions is None else render(question.instructions)
    if isinstance(question, Noul):
        return [(QUESTION, f" {asked}{_sides(question)}\n", NOUL_CLOSING)]
    if isinstance(question, Score):
        options = [render(level) for level in question.criteria]
    else:
        options = [
            key if text is None else f"{key}: {render(text)}"
            for key, text in question.criteria.items()
        ]
    shared = (QUESTION, f" {asked}\n", PROPOSAL)
    return [(*shared, f" {option}\n", PROPOSAL_CLOSING) for option in options]


def _sides(question: Noul) -> str:
    """What counts as yes and as no, as far as the caller described it."""
    if question.criteria is None:
        return ""
    sides = (("Yes", question.criteria.true), ("No", question.criteria.false))
    return "".join(f"\n{side} means: {render(text)}" for side, text in sides if text is not None)
