"""Families that read label rows: which tokens the labels are, and what their logits say.

Most of them make one prompt of a question: `one_prompt_each` and `answer_each` are theirs.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from adjudge.errors import CheckpointError
from adjudge.families import Compiled, Encoder, Prompt, Readout
from adjudge.wire import Answer, Question, Request


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
    """A … Z, then AA, AB, … as far as they are single tokens: the first `count`, label -> id.

    within: a text in which a label must show up as that same token. Raises CheckpointError if
    the vocabulary has fewer.
    """
    labels = list(_letters())
    alone = encoder.encode_many(labels)
    seen = encoder.encode_many([within.format(label) for label in labels])
    found = {
        label: int(ids[0])
        for label, ids, row in zip(labels, alone, seen, strict=True)
        if len(ids) == 1 and ids[0] in row
    }
    if len(found) < count:
        raise CheckpointError(
            f"this tokenizer has {len(found)} single-token letter labels; the family needs {count}"
        )
    return dict(list(found.items())[:count])


def _letters() -> Iterator[str]:
    letters = string.ascii_uppercase
    yield from letters
    yield from (first + second for first in letters for second in letters)


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
