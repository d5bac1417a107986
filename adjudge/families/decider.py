"""Decider: choices and nouls in one row each, a score in one yes/no row per level.

There is no chat template: a row is the state's tokens, cut at 32,768, and then the tokens of a
piece that is tokenised apart from it, so that the family works in token ids. A temperature per
question type; probabilities and confidences are rounded to 4 decimals, scores to 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from adjudge.errors import Detail, InvalidRequest
from adjudge.families import Compiled, Encoder, Limits, ModelCard, Prompt, Readout
from adjudge.families.about import About, Release
from adjudge.families.answers import choice_answer, score_answer
from adjudge.families.calibration import (
    checked_temperature,
    entropy_certainty,
    score_confidence,
    softmax,
)
from adjudge.families.labels import letter_labels, read_labels
from adjudge.families.limits import card_names, check_prompts, check_request
from adjudge.families.text import json_text, plain_text
from adjudge.wire import (
    Answer,
    Choice,
    Noul,
    NoulAnswer,
    Question,
    Request,
    Response,
    Text,
    Usage,
    kind_of,
)

CONTEXT = "Context:\n"
MAX_CONTEXT_TOKENS = 32_768
MAX_ROW_TOKENS = 36_864
NUM_LABELS = 255
MOST_OPTIONS_IN_ONE_TEXT = 10
LEAST_ITEMS_TO_NUMBER = 8
ASKED_BY_ITS_SIDES = "Which answer fits the context?"
KINDS = ("choice", "noul", "score")

_LEVEL_NUMBER = re.compile(r"^\s*-?\d+\s*:\s*")

Part = str | int
"""A piece of a row: text that is tokenised on its own, or a label's token id."""


@dataclass(frozen=True, slots=True)
class _Row:
    question: str
    options: list[str]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What an answer says of the tokens: those read once, and those of the state left out."""

    input_tokens: int
    state_tokens_cut: int


class Decider:
    """The family on one checkpoint. card.calibration: {"temperature_by_type": {choice, noul,
    score}}, each finite and above 0."""

    about = About(
        prompts="one a choice or noul, one a level of a score; state and question are tokenised "
        "apart, without a chat turn",
        labels="A to Z, then two-letter tokens AA to JT, rounded as the model's own head rounds; "
        "a temperature for each kind, probabilities rounded to 4 decimals",
        empty="a null or empty description gives the key alone, an undescribed side `no` or `yes`; "
        "a noul without instructions asks `Which answer fits the context?`",
        folder="a model with `decider_config.json`, without an adapter",
        releases=(
            Release(
                name="Mapika/decider-2b",
                revision="533964dae8be954c5b5e19fa4948e48408094c1e",
                geometry="2b",
            ),
        ),
        adapter="none",
    )

    def __init__(self, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> None:
        self.card = card
        self.limits = self.limits_for(card) if limits is None else limits
        self._encoder = encoder
        labels = letter_labels(encoder, NUM_LABELS)
        self._letters = list(labels)[:MOST_OPTIONS_IN_ONE_TEXT]
        self._ids = tuple(labels.values())
        by_type = card.calibration.get("temperature_by_type", {})
        self._temperatures = {
            kind: checked_temperature(
                by_type.get(kind), f"{card.name}: decider_config.json, temperature_by_type.{kind}"
            )
            for kind in KINDS
        }
        self.names = [*card_names(card), "decider"]

    @classmethod
    def build(cls, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> Decider:
        return cls(card, encoder, limits)

    @classmethod
    def limits_for(cls, card: ModelCard) -> Limits:
        return Limits(
            aliases=True,
            min_options=2,
            min_levels=2,
            max_prompts=1024,
            max_prompt_tokens=MAX_ROW_TOKENS,
            max_request_tokens=1_048_576,
            max_body_bytes=8 << 20,
        )

    def compile(self, request: Request) -> Compiled:
        check_request(request, self.limits, self.names)
        _check_nouls(request)
        rows = {name: _rows(question) for name, question in request.questions.items()}
        check_prompts(sum(map(len, rows.values())), self.limits)
        context, num_cut = self._context(request.state)
        pieces = self._pieces([row for question in rows.values() for row in question])

        prompts: list[Prompt] = []
        questions: dict[str, range] = {}
        for name, question in rows.items():
            start = len(prompts)
            for row in question:
                readout = Readout(self._ids[: len(row.options)], True, request.diagnostics)
                prompts.append(Prompt((context, pieces[len(prompts)]), readout, name))
            questions[name] = range(start, len(prompts))
        input_tokens = len(context) + _tokens_read_once(pieces)
        return Compiled(request, tuple(prompts), questions, _Tokens(input_tokens, num_cut))

    def answer(
        self,
        compiled: Compiled,
        logits: Sequence[np.ndarray],
        prompt_tokens: Sequence[int],
        metadata: Mapping[str, Any],
    ) -> Response:
        answers: dict[str, Answer] = {}
        for name, question in compiled.request.questions.items():
            kind = kind_of(question)
            rows: list[list[float]] = []
            masses: list[float] = []
            for place in compiled.questions[name]:
                values, mass = read_labels(logits[place], compiled.prompts[place].readout)
                rows.append(softmax(values, self._temperatures[kind]))
                masses.extend([] if mass is None else [mass])
            # The least of a score's rows: the one that a reader of the figure should worry about.
            answers[name] = _answer(question, rows, {"x_label_mass": min(masses)} if masses else {})
        tokens: _Tokens = compiled.context
        facts = {"temperature_by_type": self._temperatures, **metadata}
        if tokens.state_tokens_cut:
            facts["state_tokens_cut"] = tokens.state_tokens_cut
        return Response(
            model=self.card.name,
            answers=answers,
            usage=Usage(input_tokens=tokens.input_tokens),
            metadata=facts,
        )

    def _context(self, state: Text) -> tuple[tuple[int, ...], int]:
        """The state's tokens as far as they are read, and how many were cut."""
        (ids,) = self._encoder.encode_many([CONTEXT + _state(state)])
        return tuple(ids[:MAX_CONTEXT_TOKENS].tolist()), max(0, len(ids) - MAX_CONTEXT_TOKENS)

    def _pieces(self, rows: Sequence[_Row]) -> list[tuple[int, ...]]:
        """The tokens of each row after the context; equal texts are tokenised once."""
        parts = [self._parts(row) for row in rows]
        texts = list(dict.fromkeys(part for row in parts for part in row if isinstance(part, str)))
        ids = dict(zip(texts, self._encoder.encode_many(texts), strict=True))
        return [
            tuple(
                token
                for part in row
                for token in ([part] if isinstance(part, int) else ids[part].tolist())
            )
            for row in parts
        ]

    def _parts(self, row: _Row) -> list[Part]:
        head, tail = f"\n\nQuestion: {row.question}\nOptions:", "\nAnswer: ("
        if len(row.options) <= MOST_OPTIONS_IN_ONE_TEXT:
            lettered = zip(self._letters, row.options, strict=False)
            lines = "".join(f"\n({letter}) {option}" for letter, option in lettered)
            return [f"{head}{lines}{tail}"]
        parts: list[Part] = [head]
        for label, option in zip(self._ids, row.options, strict=False):
            parts.extend(["\n(", label, f") {option}"])
        return [*parts, tail]


def _check_nouls(request: Request) -> None:
    """A noul with neither instructions nor a described side asks nothing, empty text included."""
    details = [
        Detail(
            loc=("body", "questions", name, "noul", "instructions"),
            msg="give instructions, or describe at least one of criteria true and false",
            type="missing",
        )
        for name, question in request.questions.items()
        if isinstance(question, Noul) and not question.instructions and not any(_sides(question))
    ]
    if details:
        raise InvalidRequest(*details)


def _state(state: Text) -> str:
    return state if isinstance(state, str) else json_text(_numbered(state))


def _numbered(value: Any) -> Any:
    """JSON with the position written into the items of long arrays, under the key `_index`."""
    if isinstance(value, dict):
        return {key: _numbered(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items = [_numbered(item) for item in value]
    if len(items) < LEAST_ITEMS_TO_NUMBER:
        return items
    return [
        {"_index": index, **item} if isinstance(item, dict) else {"_index": index, "value": item}
        for index, item in enumerate(items)
    ]


def _sides(question: Noul) -> tuple[Text | None, Text | None]:
    """What no and yes mean, in the order in which they are offered."""
    sides = question.criteria
    return (None, None) if sides is None else (sides.false, sides.true)


def _option(name: str, described: Text | None) -> str:
    return name if described is None or described == "" else f"{name}: {plain_text(described)}"


def _rows(question: Question) -> list[_Row]:
    asked = plain_text(question.instructions)
    if isinstance(question, Choice):
        return [_Row(asked, [_option(*item) for item in question.criteria.items()])]
    if isinstance(question, Noul):
        options = [_option(*item) for item in zip(("no", "yes"), _sides(question), strict=True)]
        return [_Row(asked or ASKED_BY_ITS_SIDES, options)]
    levels = [_LEVEL_NUMBER.sub("", plain_text(level)) for level in question.criteria]
    return [
        _Row(f"{asked}\nProposed answer: {level}\nDoes the proposed answer fit?", ["no", "yes"])
        for level in levels
    ]


def _tokens_read_once(rows: Sequence[tuple[int, ...]]) -> int:
    """Tokens of all rows, the prefix that they all share counted once."""
    total = sum(map(len, rows))
    columns = zip(*rows, strict=False)
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return total - shared * (len(rows) - 1)


def _answer(question: Question, rows: list[list[float]], extra: dict[str, Any]) -> Answer:
    if isinstance(question, Noul):
        return NoulAnswer(noul=round(rows[0][1], 4), extra=extra)
    if isinstance(question, Choice):
        (p,) = rows
        n, best = len(p), max(p)
        certainty = {"x_p_max": round(best, 4), "x_certainty": round(entropy_certainty(p), 4)}
        return choice_answer(
            question,
            p,
            confidence=max(0.0, (n * best - 1) / (n - 1)),
            digits=4,
            extra={**certainty, **extra},
        )
    fits = [row[1] for row in rows]
    fit_mass = sum(fits) or 1e-9
    p = [fit / fit_mass for fit in fits]
    level_fit = {str(level): round(fit, 4) for level, fit in enumerate(fits)}
    return score_answer(
        question,
        p,
        confidence=score_confidence(p) if any(fits) else 0.0,
        digits=4,
        score_digits=2,
        extra={"x_level_fit": level_fit, "x_fit_mass": round(fit_mass, 4), **extra},
    )
