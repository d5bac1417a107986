"""Progress of long work, on stderr: rewritten in place on a terminal, a line now and then else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and of how much."""


class Reporter:
    """A Progress that writes. every_s: least seconds between two reports of one piece of work."""

    def __init__(self, stream: TextIO | None = None, *, every_s: float | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._every_s = every_s if every_s is not None else (0.1 if self._live else 5.0)
        self._what = ""
        self._last_s = 0.0
        self._width = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if what == self._what and done < total and now_s - self._last_s < self._every_s:
            return
        self._what, self._last_s = what, now_s
        line = f"{what}: {done:,} of {total:,}"
        if total == 1:
            line = f"{what}: done" if done else f"{what} …"
        if not self._live:
            self._stream.write(f"{line}\n")
        else:
            end = "\n" if done >= total else ""
            self._stream.write(f"\r{line:<{self._width}}{end}")
            self._width = 0 if end else len(line)
        self._stream.flush()
