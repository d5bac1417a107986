"""A layout's tables on a device: one buffer, copied once, and the tables as views of it."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from adjudge.layout import Layout
from adjudge.ops.tables import Tables, Tiles


def to_device(plan: Layout, device: torch.device) -> Tables:
    """All tables in one buffer, copied once; the tables are views of it."""
    buffer = torch.from_numpy(plan.buffer)
    if device.type == "cuda":
        buffer = buffer.pin_memory().to(device, non_blocking=True)
    return views(plan, buffer)


def views(plan: Layout, buffer: Tensor) -> Tables:
    """The tables as views of a buffer like the plan's own."""
    found = {
        name: buffer[start : start + prod(shape)].view(shape)
        for name, (start, shape) in plan.places.of.items()
    }
    return Tables(
        tiles=_tiles(found.pop("tiles"), found.pop("places_R"), plan.height),
        readout_tiles=_tiles(found.pop("readout_tiles"), found.pop("readout_places_Q"), 1),
        **found,
        level_runs=plan.level_runs,
        num_states=plan.num_states,
    )


def _tiles(table_4M: Tensor, place_Q: Tensor, height: int) -> Tiles:
    query_M, count_M, position_M, chunk_M = table_4M.unbind()
    return Tiles(query_M, count_M, position_M, chunk_M, place_Q, height)
