"""Time on a device: CUDA events around the work, or the wall clock where work is synchronous."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

LEAD_BYTES = 1 << 28
LEAD_FILLS = 4
"""What a GPU fills, larger than its cache, and how often: about 0.3 ms, while the host starts the
work that is timed."""


class Clock:
    """device: where the timed work runs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lead = None
        if device.type == "cuda":
            self._lead = torch.empty(LEAD_BYTES, dtype=torch.uint8, device=device)

    def ms(self, work: Callable[[], object]) -> float:
        """Milliseconds of the work. On a GPU the device's alone: it is kept busy until the work is
        there, and its cache holds nothing of it."""
        if self._lead is None:
            begin = time.perf_counter()
            work()
            return (time.perf_counter() - begin) * 1e3
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self._device)
        for _ in range(LEAD_FILLS):
            self._lead.zero_()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop))


def paired_ms(
    clock: Clock, one: Callable[[], object], other: Callable[[], object], repeats: int
) -> tuple[list[float], list[float]]:
    """Times of both, taken in turns so that both see the same clocks and temperatures."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        times[0].append(clock.ms(one))
        times[1].append(clock.ms(other))
    return times
