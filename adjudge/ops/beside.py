"""Work that runs beside the rest of a pass: on a second stream of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

FEWEST_ROWS = 1024
"""Rows from which a product in the shadow of the delta rule costs less than one in its turn."""


@dataclass(frozen=True, slots=True)
class Beside:
    """stream: the second one; None on a CPU.

    What runs beside starts after all that was enqueued before it, and must be joined before its
    results are read and before it begins again. Memory that one side frees is therefore free on
    the other side too when either next takes it.
    """

    stream: torch.cuda.Stream | None

    @classmethod
    def on(cls, device: torch.device) -> Beside:
        return cls(torch.cuda.Stream(device) if device.type == "cuda" else None)

    def pays(self, num_rows: int) -> bool:
        return self.stream is not None and num_rows >= FEWEST_ROWS

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Enqueues the body beside what comes after it."""
        if self.stream is None:
            raise ValueError("there is no second stream")
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """What comes next waits for what runs beside."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
