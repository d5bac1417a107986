"""The demo checkpoint: small, with random weights and a card that says so, made once per user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from adjudge.errors import CheckpointError, ConfigError
from adjudge.progress import Progress

VERSION = 1
"""Raised when the demo checkpoint changes, so that an older one is not taken for it."""


def cache_folder() -> Path:
    """Where adjudge keeps what it can make again: $XDG_CACHE_HOME/adjudge or ~/.cache/adjudge."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "adjudge"


def demo_folder(progress: Progress) -> Path:
    """The demo checkpoint's folder, written first if it is not there or damaged. Safe against a
    race. Raises ConfigError where the cache cannot be written."""
    folder = cache_folder() / f"demo-{VERSION}"
    try:
        if folder.is_dir() and _is_whole(folder):
            return folder
        _write(folder, progress)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder}: the demo checkpoint cannot be kept here "
            f"({error.strerror}); set XDG_CACHE_HOME to a folder that can be written, or name a "
            "model folder"
        ) from None
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether the checkpoint opens: every file there, of its length, and read as what it is."""
    from adjudge.checkpoint import open_checkpoint
    from adjudge.compiler import Compiler
    from adjudge.config import EngineConfig

    try:
        Compiler.of_checkpoint(open_checkpoint(folder), EngineConfig())
    except CheckpointError:
        return False
    return True


def _write(folder: Path, progress: Progress) -> None:
    from adjudge.checkpoint.make import write_checkpoint

    folder.parent.mkdir(parents=True, exist_ok=True)
    progress("making the demo checkpoint", 0, 1)
    with tempfile.TemporaryDirectory(prefix="demo-", dir=folder.parent) as unfinished:
        written = write_checkpoint(Path(unfinished) / "checkpoint", layout="adjudge")
        if folder.is_dir() and not _is_whole(folder):
            folder.rename(Path(unfinished) / "damaged")
        try:
            written.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    progress("making the demo checkpoint", 1, 1)
