"""Numbers summed up: percentiles, and a paired bootstrap of a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds over some requests."""

    mean: float
    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Latency:
        p50, p95, p99 = np.percentile(times_ms, [50, 95, 99]).tolist()
        return cls(float(np.mean(times_ms)), p50, p95, p99, max(times_ms))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How a quantity is spread."""

    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
        return cls(p50, p90, p99, float(max(values)))


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the bounds that hold it with 95 % confidence."""

    value: float
    low: float
    high: float


def mean_ratio(
    a_ms: Sequence[float], b_ms: Sequence[float], *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """mean(b) / mean(a), with a percentile bootstrap over the pairs (a_ms[i], b_ms[i])."""
    a, b = np.asarray(a_ms), np.asarray(b_ms)
    rng = np.random.default_rng(seed)
    ratios = []
    for _ in range(resamples):
        drawn = rng.integers(0, len(a), len(a))
        ratios.append(b[drawn].sum() / a[drawn].sum())
    low, high = np.percentile(ratios, [2.5, 97.5]).tolist()
    return Interval(float(b.sum() / a.sum()), low, high)
