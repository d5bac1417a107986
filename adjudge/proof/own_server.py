"""A server of this build, started for a measurement and stopped after it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from adjudge.errors import ConfigError

STOP_SECONDS = 60.0


class OwnServer:
    """`adjudge serve` with these words on a free port of this machine; its log goes to stderr."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self.url = ""

    def __enter__(self) -> OwnServer:
        """Waits until it is ready. Raises ConfigError if it ends before."""
        command = [sys.executable, "-m", "adjudge", "serve", *self._words, "--port", "0"]
        self._process = subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, text=True
        )
        line = self._process.stdout.readline() if self._process.stdout else ""
        word, _, self.url = line.strip().partition(" ")
        if word != "ready":
            code = self._process.wait()
            raise ConfigError(f"the server ended with exit code {code}; its message is above")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.communicate(timeout=STOP_SECONDS)

    def peak_memory_mib(self) -> int | None:
        """The process's peak resident memory; None where the system does not tell."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return None
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) >> 10
        return None
