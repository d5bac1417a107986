"""A forest on a device: its tables, packed and copied at once, and the forward pass over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adjudge.forest import Forest
from adjudge.ops.attention import SLOTS
from adjudge.ops.tables import Tables, Tiles

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Layout:
    """A forest as the device wants it: int32 arrays by the name of their field in Tables.

    Tiles are arrays [4, M] of query, count, position, chunk. num_rows: rows in use; the rest of
    the row tables is padding. level_runs, num_states, height: see Tables and Tiles.
    """

    arrays: dict[str, Ints]
    num_rows: int
    level_runs: tuple[int, ...]
    num_states: int
    height: int


def layout(forest: Forest, *, height: int = SLOTS, padded_rows: int | None = None) -> Layout:
    """The tables of a forest, its rows padded to `padded_rows`, tiles of at most `height`."""
    rows = forest.num_rows
    extra = (rows if padded_rows is None else padded_rows) - rows
    if extra < 0:
        raise ValueError(f"{rows} rows do not fit into {padded_rows}")
    readout_depths = forest.positions[0][forest.readout_rows]
    arrays = {
        "token_ids_R": np.pad(forest.token_ids, (0, extra)),
        "positions_3R": np.pad(forest.positions, ((0, 0), (0, extra))),
        "ancestors_R3": np.pad(forest.ancestors, ((0, extra), (0, 0)), constant_values=-1),
        "chunk_rows_CT": forest.chunk_rows,
        "chunk_first_C": forest.chunk_first,
        "chunk_len_C": forest.chunk_len,
        "path_chunks_CW": forest.path_chunks,
        "chunk_state_out_C": forest.chunk_state_out,
        "run_first_N": forest.run_first,
        "run_count_N": forest.run_count,
        "run_state_in_N": forest.run_state_in,
        "readout_rows_Q": forest.readout_rows,
        "tiles": row_tiles(forest, height),
        "readout_tiles": np.stack(
            [
                np.arange(len(readout_depths)),
                np.ones_like(readout_depths),
                forest.chunk_window[forest.readout_chunks] * forest.chunk_rows.shape[1]
                + forest.chunk_len[forest.readout_chunks]
                - 1,
                forest.readout_chunks,
            ]
        ),
    }
    return Layout(
        arrays={name: array.astype(np.int32) for name, array in arrays.items()},
        num_rows=rows,
        level_runs=tuple(np.bincount(forest.run_level).tolist()),
        num_states=forest.num_states,
        height=height,
    )


def row_tiles(forest: Forest, height: int) -> Ints:
    """[4, M]: the new rows of every chunk, cut at multiples of `height` positions."""
    per_chunk = forest.chunk_rows.shape[1] // height
    span = np.arange(per_chunk) * height
    begin = np.clip(forest.chunk_first[:, None], span, span + height)
    stop = np.clip(forest.chunk_len[:, None], span, span + height)
    chunk, part = np.nonzero(stop > begin)
    begin, count = begin[chunk, part], (stop - begin)[chunk, part]
    position = forest.chunk_window[chunk] * forest.chunk_rows.shape[1] + begin
    return np.stack([forest.chunk_rows[chunk, begin], count, position, chunk])


def to_device(plan: Layout, device: torch.device) -> Tables:
    """All tables in one buffer, copied once; the tables are views of it."""
    packed = np.concatenate([array.ravel() for array in plan.arrays.values()])
    buffer = torch.from_numpy(packed)
    if device.type == "cuda":
        buffer = buffer.pin_memory().to(device, non_blocking=True)
    views: dict[str, Tensor] = {}
    start = 0
    for name, array in plan.arrays.items():
        views[name] = buffer[start : start + array.size].view(array.shape)
        start += array.size
    tiles, readout_tiles = views.pop("tiles"), views.pop("readout_tiles")
    return Tables(
        **views,
        tiles=Tiles(*tiles.unbind(), height=plan.height),
        readout_tiles=Tiles(*readout_tiles.unbind(), height=1),
        level_runs=plan.level_runs,
        num_states=plan.num_states,
    )
