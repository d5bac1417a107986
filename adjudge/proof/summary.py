"""Samples of a pass -> its figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from adjudge.proof.load import Mode, Sample
from adjudge.proof.result import Group, Pass
from adjudge.proof.spread import Latency
from adjudge.proof.workloads import Case

ELSEWHERE = "elsewhere"
"""What a request took beside the parts that the server names."""

_TIMING = re.compile(r"([\w-]+);dur=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Summary:
    """unique_tokens: case -> unique tokens of its request, where they were counted;
    peak_tokens_per_s: what the utilisation is a share of."""

    cases: Sequence[Case]
    rounds: int
    unique_tokens: Mapping[int, int] | None
    peak_tokens_per_s: float | None

    def of(self, mode: Mode, samples: Sequence[Sample], seconds: float) -> Pass:
        """The pass that gave these samples, at least one of them answered."""
        answered = [(s, s.checked) for s in samples if s.checked is not None]
        times: dict[int, list[float]] = {}
        for sample, _ in sorted(answered, key=lambda pair: pair[0].start_ms):
            times.setdefault(sample.case, []).append(sample.latency_ms)
        unique = None
        if self.unique_tokens is not None:
            unique = sum(self.unique_tokens[sample.case] for sample, _ in answered) / seconds
        peak = self.peak_tokens_per_s
        decisions = sum(self.cases[sample.case].num_questions for sample, _ in answered)
        return Pass(
            mode=mode.name,
            rounds=self.rounds,
            seconds=seconds,
            requests=len(answered),
            turned_away=sum(sample.turned_away for sample in samples),
            latency_ms=Latency.of([sample.latency_ms for sample, _ in answered]),
            requests_per_s=len(answered) / seconds,
            decisions_per_s=decisions / seconds,
            prompt_tokens_per_s=sum(checked.input_tokens for _, checked in answered) / seconds,
            unique_tokens_per_s=unique,
            utilisation=None if unique is None or peak is None else unique / peak,
            groups=self._groups([sample for sample, _ in answered]),
            parts_ms=_parts([sample for sample, _ in answered]),
            times_ms={self.cases[case].id: tuple(times[case]) for case in sorted(times)},
        )

    def _groups(self, answered: Sequence[Sample]) -> tuple[Group, ...]:
        by_group: dict[str, list[float]] = {}
        for case in sorted(self.cases, key=lambda case: (case.tokens or 0, case.id)):
            by_group.setdefault(case.group, [])
        for sample in answered:
            by_group[self.cases[sample.case].group].append(sample.latency_ms)
        return tuple(
            Group(name, len(times), Latency.of(times)) for name, times in by_group.items() if times
        )


def _parts(answered: Sequence[Sample]) -> dict[str, float]:
    """Medians of the parts in server-timing, over the requests that have it, and of the rest."""
    by_name: dict[str, list[float]] = {}
    for sample in answered:
        if not sample.timing:
            continue
        parts = {name: float(ms) for name, ms in _TIMING.findall(sample.timing.decode("latin-1"))}
        for name, ms in parts.items():
            by_name.setdefault(name, []).append(ms)
        by_name.setdefault(ELSEWHERE, []).append(sample.latency_ms - sum(parts.values()))
    return {name: median(values) for name, values in by_name.items()}
