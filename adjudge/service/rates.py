"""How often one caller may ask: at a steady rate, and up to one second's worth at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable

from adjudge.errors import RateLimited

MAX_CALLERS = 4096
"""Callers remembered; past that, those who could ask at once anyway are forgotten."""


class Rates:
    """The generic cell rate algorithm: for each caller, when the next request would be due if all
    had come evenly. Times are seconds of `clock`. Used from one thread."""

    def __init__(
        self, per_second: float | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """per_second: None for no limit."""
        self._per_second = per_second
        self._clock = clock
        self._due: dict[Hashable, float] = {}
        self._most = MAX_CALLERS

    def __bool__(self) -> bool:
        return self._per_second is not None

    def check(self, caller: Hashable) -> None:
        """Count a request. Raises RateLimited (429) with the time until the next would pass; a
        refused request is not counted."""
        if self._per_second is None:
            return
        interval = 1 / self._per_second
        at_once = max(1.0, interval)
        now = self._clock()
        due = max(self._due.get(caller, now), now)
        early = due + interval - now - at_once
        if early > 1e-9:
            raise RateLimited(
                f"more than {self._per_second:g} requests a second came from this caller; send "
                "them slower, or again after the given time",
                retry_after_ms=math.ceil(early * 1000),
            )
        if len(self._due) >= self._most:
            self._due = {one: then for one, then in self._due.items() if then > now}
            self._most = max(MAX_CALLERS, 2 * len(self._due))
        self._due[caller] = due + interval
