"""The demo checkpoint: small, with random weights and a card that says so, made once per user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from adjudge.progress import Progress

VERSION = 1
"""Raised when the demo checkpoint changes, so that an older one is not taken for it."""


def cache_folder() -> Path:
    """Where adjudge keeps what it can make again: $XDG_CACHE_HOME/adjudge or ~/.cache/adjudge."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "adjudge"


def demo_folder(progress: Progress) -> Path:
    """The demo checkpoint's folder, written first if it is not there. Safe against a race."""
    folder = cache_folder() / f"demo-{VERSION}"
    if folder.is_dir():
        return folder
    from adjudge.checkpoint.make import write_checkpoint

    folder.parent.mkdir(parents=True, exist_ok=True)
    progress("making the demo checkpoint", 0, 1)
    with tempfile.TemporaryDirectory(prefix="demo-", dir=folder.parent) as unfinished:
        written = write_checkpoint(Path(unfinished) / "checkpoint", layout="adjudge")
        try:
            written.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    progress("making the demo checkpoint", 1, 1)
    return folder
