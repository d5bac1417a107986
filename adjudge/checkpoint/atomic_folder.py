"""A folder that appears whole or not at all.

It is written as a hidden sibling `.NAME.partial` and renamed at the end. Whoever writes holds a
lock on the sibling, so what a killed run left behind is known to be stale, and the next run for
the same name starts afresh.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adjudge.errors import CheckpointError


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Gives an empty folder to fill; at the end of the block it becomes `target`.

    The block syncs the files it writes. When it raises, nothing of it stays on the disk. Raises
    CheckpointError when `target` exists, another process is writing it, or the disk refuses.
    """
    partial = target.parent / f".{target.name}.partial"
    try:
        if os.path.lexists(target):
            raise CheckpointError(f"{target}: exists already; remove it or name another folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _owned(target, partial):
            try:
                yield partial
                sync_folder(partial)
                partial.rename(target)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            sync_folder(target.parent)
    except OSError as error:
        place = error.filename or target
        hint = "; free space and try again" if error.errno == errno.ENOSPC else ""
        raise CheckpointError(f"{place}: cannot be written: {error.strerror}{hint}") from error


@contextmanager
def _owned(target: Path, partial: Path) -> Iterator[None]:
    """Holds the lock on the partial folder, empty at the start."""
    partial.mkdir(exist_ok=True)
    handle = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        busy = CheckpointError(f"{target}: another process is writing it")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        if not partial.exists() or not os.path.samestat(os.fstat(handle), partial.stat()):
            raise busy  # renamed or removed by its owner between the opening and the lock
        for entry in partial.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        yield
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
