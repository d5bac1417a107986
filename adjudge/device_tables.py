"""A layout's tables on a device: one buffer, copied once, and the tables as views of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from adjudge.layout import ALIGNED, Layout
from adjudge.ops.tables import Tables, Tiles


def to_device(plan: Layout, device: torch.device) -> Tables:
    """All tables in one buffer, copied once; the tables are views of it."""
    buffer = torch.from_numpy(packed(plan))
    if device.type == "cuda":
        buffer = buffer.pin_memory().to(device, non_blocking=True)
    return views(plan, buffer)


def packed(plan: Layout) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32 [total]: the tables one after the other, each at an aligned place."""
    parts = []
    for array in plan.arrays.values():
        parts += [array.ravel(), np.zeros(-array.size % ALIGNED, np.int32)]
    return np.concatenate(parts)


def views(plan: Layout, buffer: Tensor) -> Tables:
    """The tables as views of a buffer that holds them packed."""
    found: dict[str, Tensor] = {}
    start = 0
    for name, array in plan.arrays.items():
        found[name] = buffer[start : start + array.size].view(array.shape)
        start += array.size + -array.size % ALIGNED
    return Tables(
        tiles=_tiles(found.pop("tiles"), plan.height),
        readout_tiles=_tiles(found.pop("readout_tiles"), 1),
        **found,
        level_runs=plan.level_runs,
        num_states=plan.num_states,
    )


def _tiles(table_4M: Tensor, height: int) -> Tiles:
    query_M, count_M, position_M, chunk_M = table_4M.unbind()
    return Tiles(query_M, count_M, position_M, chunk_M, height)
