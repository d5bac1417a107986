"""Typed answers from probabilities, in the request's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.families.calibration import level_mean
from adjudge.wire import Choice, ChoiceAnswer, Score, ScoreAnswer


def choice_answer(
    question: Choice,
    probabilities: Sequence[float],
    *,
    confidence: float,
    digits: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> ChoiceAnswer:
    """The first most probable option wins; `digits`: decimals of what is shown, None for all."""
    options = list(question.criteria)
    return ChoiceAnswer(
        choice=options[probabilities.index(max(probabilities))],
        probabilities=dict(zip(options, _shown(probabilities, digits), strict=True)),
        confidence=_shown([confidence], digits)[0],
        extra=extra or {},
    )


def score_answer(
    question: Score,
    probabilities: Sequence[float],
    *,
    confidence: float,
    digits: int | None = None,
    score_digits: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> ScoreAnswer:
    """The score is the expected level, from probabilities before any rounding."""
    levels = [str(level) for level in range(len(question.criteria))]
    return ScoreAnswer(
        score=_shown([level_mean(probabilities)], score_digits)[0],
        legend=dict(zip(levels, question.criteria, strict=True)),
        probabilities=dict(zip(levels, _shown(probabilities, digits), strict=True)),
        confidence=_shown([confidence], digits)[0],
        extra=extra or {},
    )


def _shown(values: Sequence[float], digits: int | None) -> list[float]:
    return [value if digits is None else round(value, digits) for value in values]
