"""All answers of a run: the first to each request, and every later one that is not its equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.proof.evidence import Gate
from adjudge.proof.load import Sample
from adjudge.proof.result import Quality
from adjudge.proof.workloads import Case

SHOWN = 3
"""Faults that a gate's detail names."""


class AnswerBook:
    """Answers of one server to these cases, over any number of passes."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        self._first: dict[int, bytes] = {}
        self._differing: list[str] = []
        self._unanswered: list[str] = []
        self._wrong: list[str] = []
        self._num_answers = 0
        self.model = ""

    def add(self, mode: str, samples: Iterable[Sample], *, may_turn_away: bool = False) -> None:
        """Takes a pass's samples. may_turn_away: a full server is no fault (an open loop), as long
        as it answers something."""
        samples = list(samples)
        if samples and all(sample.turned_away for sample in samples):
            self._unanswered.append(f"{mode}: every request was turned away")
        for sample in samples:
            name = self._cases[sample.case].id
            if sample.checked is None:
                if not (sample.turned_away and may_turn_away):
                    found = self._wrong if sample.wrong else self._unanswered
                    found.append(f"{name} ({mode}): {sample.fault}")
                continue
            self._num_answers += 1
            self.model = sample.checked.model
            first = self._first.setdefault(sample.case, sample.checked.answers_json)
            if first != sample.checked.answers_json:
                self._differing.append(f"{name} ({mode})")

    def gates(self, *, allow_inexact: bool) -> list[Gate]:
        """The gates over everything added. allow_inexact: answers may differ between passes; the
        gate then only says how many did."""
        equal = _gate("answers byte-equal between passes", self._differing, self._num_answers)
        if allow_inexact and not equal.passed:
            equal = Gate(f"{equal.name} (not required)", True, equal.detail)
        return [
            _gate("every request answered", self._unanswered, self._num_answers),
            _gate("every answer valid", self._wrong, self._num_answers),
            equal,
        ]

    def first(self, case: int) -> Mapping[str, bytes]:
        """The first answers to a case: question -> JSON as it was sent."""
        answers = msgspec.json.decode(self._first[case], type=dict[str, msgspec.Raw])
        return {name: bytes(raw) for name, raw in answers.items()}

    def sample(self) -> tuple[Case, bytes]:
        """An answered case and its answers, as they were sent."""
        return next((self._cases[case], raw) for case, raw in sorted(self._first.items()))

    def answers(self) -> dict[str, dict[str, Any]]:
        """Case id -> its first answers, decoded."""
        return {
            self._cases[case].id: msgspec.json.decode(raw)
            for case, raw in sorted(self._first.items())
        }

    def digest(self) -> str:
        """SHA-256 over the bytes of the first answers, in the order of the cases."""
        total = hashlib.sha256()
        for case, raw in sorted(self._first.items()):
            total.update(f"{self._cases[case].id}\0{len(raw)}\0".encode())
            total.update(raw)
        return total.hexdigest()

    def quality(self) -> Quality | None:
        """The first answers against the labels; None where nothing is labelled."""
        answers = self.answers()
        pairs = [
            (answers[case.id][name], label)
            for case in self._cases
            for name, label in (case.labels or {}).items()
        ]
        if not pairs:
            return None
        choices = [a["choice"] == label for a, label in pairs if a["type"] == "choice"]
        nouls = [(a["noul"], label) for a, label in pairs if a["type"] == "noul"]
        errors = [abs(a["score"] - label) for a, label in pairs if a["type"] == "score"]
        return Quality(
            labelled=len(pairs),
            choice_accuracy=_mean(choices),
            noul_accuracy=_mean([(p >= 0.5) == label for p, label in nouls]),
            noul_brier=_mean([(p - label) ** 2 for p, label in nouls]),
            level_error=_mean(errors),
        )


def _gate(name: str, faults: Sequence[str], total: int) -> Gate:
    if not faults:
        return Gate(name, True, f"{total:,} answers")
    more = f"; and {len(faults) - SHOWN:,} more" if len(faults) > SHOWN else ""
    return Gate(name, False, "; ".join(faults[:SHOWN]) + more)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
