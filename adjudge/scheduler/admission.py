"""How much may wait, and what a refused caller is told. Not locked: the scheduler's lock holds."""

from __future__ import annotations

from dataclasses import dataclass

from adjudge.errors import Overloaded

LEAST_RETRY_MS = 50
MOST_RETRY_MS = 5_000
UNKNOWN_RETRY_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Most jobs and most rows that are accepted and not yet answered."""

    jobs: int
    rows: int


class Admission:
    """Counts what is accepted and not yet answered, and how fast rows are being worked off."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.jobs = 0
        self.weight = 0
        self._rows_per_second = 0.0

    def enter(self) -> None:
        """Count one more job. Raises Overloaded (529)."""
        if self.jobs >= self.limits.jobs:
            raise Overloaded(
                f"{self.jobs} requests are waiting and the limit is {self.limits.jobs}; "
                "try again after the given time",
                retry_after_ms=self.retry_after_ms(),
            )
        self.jobs += 1

    def add(self, weight: int) -> None:
        """Count a job's tokens. A job that would wait for nobody is accepted whatever its size.

        Raises Overloaded (529).
        """
        if self.weight and self.weight + weight > self.limits.rows:
            raise Overloaded(
                f"{self.weight} tokens are waiting, this request adds {weight} and the limit is "
                f"{self.limits.rows}; try again after the given time",
                retry_after_ms=self.retry_after_ms(),
            )
        self.weight += weight

    def leave(self, weight: int) -> None:
        """Uncount a job and its tokens."""
        self.jobs -= 1
        self.weight -= weight

    def learn(self, rows: int, seconds: float) -> None:
        """Rows and seconds of a finished pass; the recent ones count most."""
        speed = rows / max(seconds, 1e-6)
        known = self._rows_per_second
        self._rows_per_second = known + 0.2 * (speed - known) if known else speed

    def retry_after_ms(self) -> int:
        """When half of what waits should be done, kept within what clients wait for."""
        if not self._rows_per_second:
            return UNKNOWN_RETRY_MS
        half_ms = int(500 * self.weight / self._rows_per_second)
        return max(LEAST_RETRY_MS, min(half_ms, MOST_RETRY_MS))
