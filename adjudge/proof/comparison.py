"""Two results side by side: what changed from A to B, and whether that is within limits."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adjudge.errors import ConfigError
from adjudge.proof.drift import Answers, Drift, drift
from adjudge.proof.recorded import Comparable
from adjudge.proof.result import EngineResult, Pass, ServeResult
from adjudge.proof.spread import Interval, mean_ratio


@dataclass(frozen=True, slots=True)
class Speed:
    """Times of the same work in A and B, mean ms; ratio: B ÷ A with a paired bootstrap interval
    over the requests, None where single figures are compared."""

    name: str
    a_ms: float
    b_ms: float
    ratio: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """only_a, only_b: requests that one side lacks; drift: None between engine results."""

    drift: Drift | None
    speeds: tuple[Speed, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Most that may change, None for anything. latency_ratio: exceeded when B is slower than
    that with 95 % confidence, or where there is no interval, when its ratio is above."""

    flips: int | None = None
    probability: float | None = None
    score: float | None = None
    latency_ratio: float | None = None


def compare(a: Comparable, b: Comparable) -> Comparison:
    """What changes from a to b. Raises ConfigError where the two do not fit together."""
    if isinstance(a, EngineResult) or isinstance(b, EngineResult):
        if not (isinstance(a, EngineResult) and isinstance(b, EngineResult)):
            raise ConfigError("an engine result compares with an engine result only")
        return Comparison(None, tuple(_layout_speeds(a, b)))
    if isinstance(a, ServeResult) and isinstance(b, ServeResult):
        if a.workload_sha256 != b.workload_sha256:
            raise ConfigError(
                f"different requests were sent ({a.workload} {a.workload_sha256[:12]}, "
                f"{b.workload} {b.workload_sha256[:12]}); compare runs of one workload and seed"
            )
        speeds = tuple(_pass_speeds(a.passes, b.passes))
    else:
        speeds = ()
    common = [name for name in a.answers if name in b.answers]
    if not common:
        raise ConfigError("no request id is in both files; record answers under the same ids")
    return Comparison(
        drift=drift(_only(a.answers, common), _only(b.answers, common)),
        speeds=speeds,
        only_a=tuple(name for name in a.answers if name not in b.answers),
        only_b=tuple(name for name in b.answers if name not in a.answers),
    )


def exceeded(found: Comparison, limits: Limits) -> list[str]:
    """The limits that the comparison is past, each as a sentence."""
    said: list[str] = []

    def check(what: str, value: float, most: float | None) -> None:
        if most is not None and value > most:
            said.append(f"{what} is {value:.6g}, and at most {most:.6g} is allowed")

    if found.drift is not None:
        check("the number of flipped decisions", len(found.drift.flipped), limits.flips)
        check("the largest probability drift", found.drift.probability.most, limits.probability)
        if found.drift.score is not None:
            check("the largest score drift", found.drift.score.most, limits.score)
    for speed in found.speeds:
        least = speed.ratio if speed.interval is None else speed.interval.low
        check(f"the latency ratio of {speed.name}", least, limits.latency_ratio)
    return said


def _pass_speeds(a: Sequence[Pass], b: Sequence[Pass]) -> Iterator[Speed]:
    """Passes of the same load in both, requests paired by id, rounds averaged."""
    others = {one.mode: one for one in b}
    for one in a:
        other = others.get(one.mode)
        if other is None:
            continue
        common = [name for name in one.times_ms if name in other.times_ms]
        if not common:
            continue
        mine = [statistics.fmean(one.times_ms[name]) for name in common]
        theirs = [statistics.fmean(other.times_ms[name]) for name in common]
        interval = mean_ratio(mine, theirs)
        means = statistics.fmean(mine), statistics.fmean(theirs)
        yield Speed(one.mode, *means, interval.value, interval)


def _layout_speeds(a: EngineResult, b: EngineResult) -> Iterator[Speed]:
    others = {layout.name: layout for layout in b.layouts}
    for layout in a.layouts:
        other = others.get(layout.name)
        if other is not None:
            ratio = other.pass_ms / layout.pass_ms
            yield Speed(layout.name, layout.pass_ms, other.pass_ms, ratio, None)


def _only(answers: Answers, names: Sequence[str]) -> Answers:
    return {name: answers[name] for name in names}
