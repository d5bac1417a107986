"""From logits to probabilities and confidences, in float64. Used by more than one family."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from adjudge.errors import CheckpointError

LEAST_TEMPERATURE = 1e-37
"""An FP32 logit over it is finite in FP64, with room for sums; far below any that is trained."""


def checked_temperature(value: Any, origin: str) -> float:
    """A checkpoint's temperature, finite and not below LEAST_TEMPERATURE. Raises CheckpointError
    naming `origin`."""
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    if is_number and LEAST_TEMPERATURE <= value <= sys.float_info.max:
        return float(value)
    raise CheckpointError(
        f"{origin}: temperature is {value!r}, and must be finite and at least {LEAST_TEMPERATURE}"
    )


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """softmax(logits / temperature) over all of `logits`."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    probabilities: list[float] = (weights / weights.sum()).tolist()
    return probabilities


def level_mean(probabilities: Sequence[float]) -> float:
    """Σ i·p_i, the expected level."""
    return float(sum(level * p for level, p in enumerate(probabilities)))


def choice_confidence(probabilities: Sequence[float]) -> float:
    """(p_max − 1/n) / (1 − 1/n): 0 where all are equal, 1 where one has everything, or n = 1."""
    n = len(probabilities)
    if n == 1:
        return 1.0
    return max(0.0, (max(probabilities) - 1 / n) / (1 - 1 / n))


def score_confidence(probabilities: Sequence[float]) -> float:
    """max(0, 1 − Σ p_i·|i − mode| / D), D = mean_i |i − (n−1)/2|, the first maximum as mode;
    1 where n = 1."""
    n = len(probabilities)
    if n == 1:
        return 1.0
    mode = max(range(n), key=probabilities.__getitem__)
    spread = sum(p * abs(level - mode) for level, p in enumerate(probabilities))
    uniform_spread = sum(abs(level - (n - 1) / 2) for level in range(n)) / n
    return max(0.0, 1 - spread / uniform_spread)


def entropy_certainty(probabilities: Sequence[float]) -> float:
    """max(0, 1 − H / ln n), H the entropy in nats; 1 where n = 1."""
    n = len(probabilities)
    if n == 1:
        return 1.0
    entropy = -sum(p * math.log(p) for p in probabilities if p > 0)
    return max(0.0, 1 - entropy / math.log(n))
