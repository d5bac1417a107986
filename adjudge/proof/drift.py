"""Two sets of answers to the same requests: decisions flipped, probabilities and scores moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adjudge.errors import ConfigError
from adjudge.proof.spread import Percentiles

Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Request id -> question -> answer, as the wire has it."""


@dataclass(frozen=True, slots=True)
class Drift:
    """decisions: questions compared; flipped: "request, question: decision → decision";
    probability: absolute differences of a noul's or a candidate's probability; score: of scores,
    in levels; None where there was nothing to compare."""

    decisions: int
    flipped: tuple[str, ...]
    probability: Percentiles
    score: Percentiles | None


def drift(a: Answers, b: Answers) -> Drift:
    """What changes from a to b over the requests of a, all of which b has.

    Raises ConfigError where the two do not answer the same questions.
    """
    flipped: list[str] = []
    probabilities: list[float] = []
    scores: list[float] = []
    decisions = 0
    for request, questions in a.items():
        if set(questions) != set(b[request]):
            raise ConfigError(f"{request}: the two sides answer different questions")
        for name, one in questions.items():
            other = b[request][name]
            decisions += 1
            before, after = decision(one), decision(other)
            if before != after:
                flipped.append(f"{request}, {name}: {before} → {after}")
            probabilities += _differences(one, other, f"{request}, {name}")
            if one["type"] == "score":
                scores.append(abs(one["score"] - other["score"]))
    if not decisions:
        raise ConfigError("there is no answer to compare")
    score = Percentiles.of(scores) if scores else None
    return Drift(decisions, tuple(flipped), Percentiles.of(probabilities), score)


def decision(answer: Mapping[str, Any]) -> str:
    """What a caller would do with an answer: yes or no, an option, the most probable level."""
    if answer["type"] == "noul":
        return "yes" if answer["noul"] >= 0.5 else "no"
    if answer["type"] == "choice":
        return str(answer["choice"])
    levels = answer["probabilities"]
    return f"level {max(levels, key=levels.__getitem__)}"


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> Iterator[float]:
    if one["type"] != other["type"]:
        raise ConfigError(f"{where}: a {one['type']} answer against a {other['type']} answer")
    if one["type"] == "noul":
        yield abs(one["noul"] - other["noul"])
        return
    mine, theirs = one["probabilities"], other["probabilities"]
    if set(mine) != set(theirs):
        raise ConfigError(f"{where}: the two sides have different candidates")
    for key, p in mine.items():
        yield abs(p - theirs[key])
