"""Families that read label rows: which tokens the labels are, and what their logits say.

Most of them make one prompt of a question: `one_prompt_each` and `answer_each` are theirs.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from adjudge.errors import CheckpointError
from adjudge.families import Compiled, Encoder, Prompt, Readout
from adjudge.wire import Answer, Question, Request

_NO_TOKENS = {
    "BQ", "BZ", "CJ", "CQ", "CZ", "DQ", "DZ", "EJ", "EY", "FJ", "FQ", "FV", "FZ",
    "GJ", "GK", "GQ", "GZ", "HJ", "IY", "JF", "JG", "JH", "JL", "JN", "JQ",
}  # fmt: skip
"""Two letters that are not one token of the released vocabulary."""

LETTERS = (
    *string.ascii_uppercase,
    *(
        first + second
        for first, second in itertools.product(string.ascii_uppercase, repeat=2)
        if first + second <= "JU" and first + second not in _NO_TOKENS
    ),
)
"""A … Z, then AA … JU as far as they are single tokens of the released vocabulary: 256 labels,
of which JT (id 78382) is the 255th."""


def checked_label_ids(encoder: Encoder, labels: Sequence[str], ending: str) -> tuple[int, ...]:
    """The id of each label where it is read: after `ending`, the real end of the prompts.

    ending: the last text of every prompt, from a place where it may be tokenised on its own.
    Raises CheckpointError unless each label adds exactly one token there, and no two the same.
    """
    before, *after = encoder.encode_many([ending, *(ending + label for label in labels)])
    ids: list[int] = []
    for label, row in zip(labels, after, strict=True):
        if len(row) != len(before) + 1 or not np.array_equal(row[:-1], before):
            raise CheckpointError(
                f"the label {label!r} is not one token of this tokenizer after {ending[-24:]!r}; "
                "the checkpoint and its tokenizer do not belong together"
            )
        ids.append(int(row[-1]))
    if len(set(ids)) != len(ids):
        raise CheckpointError("two labels are the same token of this tokenizer")
    return tuple(ids)


def letter_labels(encoder: Encoder, count: int, within: str = "{}") -> dict[str, int]:
    """The first `count` of LETTERS, label -> id.

    within: a text in which a label must show up as that same token. Raises CheckpointError that
    names the first label that is not one token of its own: without it all others would shift.
    """
    labels = LETTERS[:count]
    alone = encoder.encode_many(labels)
    seen = encoder.encode_many([within.format(label) for label in labels])
    found: dict[str, int] = {}
    for label, ids, row in zip(labels, alone, seen, strict=True):
        if len(ids) != 1 or ids[0] not in row or int(ids[0]) in found.values():
            raise CheckpointError(
                f"the label {label!r} is not one token of this tokenizer, as its model was "
                "trained to read it; the checkpoint and its tokenizer do not belong together"
            )
        found[label] = int(ids[0])
    return found


def read_labels(logits: np.ndarray, readout: Readout) -> tuple[list[float], float | None]:
    """The label logits of one prompt, and their share of the full softmax where it was read."""
    values = [float(value) for value in logits]
    if not readout.mass:
        return values, None
    *labels, total = values
    return labels, min(1.0, math.fsum(math.exp(value - total) for value in labels))


def one_prompt_each(request: Request, prompts: Iterable[Prompt]) -> Compiled:
    """A request of which each question is one prompt, in request order."""
    made = tuple(prompts)
    return Compiled(
        request, made, {prompt.question: range(i, i + 1) for i, prompt in enumerate(made)}
    )


def answer_each(
    compiled: Compiled,
    logits: Sequence[np.ndarray],
    answer: Callable[[Any, list[float], dict[str, Any]], Answer],
) -> dict[str, Answer]:
    """Answers by question, for what `one_prompt_each` made.

    answer: gets the question, its label logits, and `x_label_mass` where it was read.
    """
    answers: dict[str, Answer] = {}
    for prompt, row in zip(compiled.prompts, logits, strict=True):
        values, mass = read_labels(row, prompt.readout)
        question: Question = compiled.request.questions[prompt.question]
        answers[prompt.question] = answer(
            question, values, {} if mass is None else {"x_label_mass": mass}
        )
    return answers
