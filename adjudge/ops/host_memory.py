"""Memory of a CPU's passes: kept by the process, not given back and faulted in again."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Tells glibc to reuse freed blocks of any size; True where it listened.

    By default every activation of some MB is mapped, zeroed page by page and unmapped again,
    which is a quarter of a forward pass. The process then holds its peak until it ends.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    heard = [mallopt(option, KEPT_BYTES) for option in options]
    return all(heard)
