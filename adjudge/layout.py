"""A forest as a device wants it: int32 tables, padded to a bucket, in one buffer.

Padding is always empty: a row that no chunk lists, a chunk of length 0, a tile of count 0. It
cannot change a row, so a pass may be padded to any bucket that it fits.

Legend: R rows, C chunks, W windows, N runs, L levels, M attention tiles, Q readout rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from adjudge.buckets import Bucket
from adjudge.forest import CHUNK, Forest
from adjudge.tiles import readout_places, readout_tiles, row_places, row_tiles

Ints = NDArray[np.int32]
Size = tuple[int, ...]

ALIGNED = 4
"""Tables and rows of tiles start at multiples of this many integers (16 bytes), so that kernels
meet one alignment and are compiled once."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where tables lie in one buffer: (start, shape) by the name of a field of ops.tables.Tables.

    Tiles have shape (4, M): query, count, position, chunk. total: integers of the buffer.
    """

    of: dict[str, tuple[int, Size]]
    total: int

    @classmethod
    def one_after_another(cls, shapes: Mapping[str, Size]) -> Places:
        """In the given order, each at an aligned place."""
        of, start = {}, 0
        for name, shape in shapes.items():
            of[name] = (start, shape)
            start += _aligned(prod(shape))
        return cls(of, start)


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of a pass in one buffer. num_rows: rows in use; padded_rows: rows computed.

    level_runs: runs of each level, 0 where padding adds a level; num_states, height: see Tables
    and Tiles; bucket: what it was padded to, if anything.
    """

    buffer: Ints
    places: Places
    num_rows: int
    padded_rows: int
    num_readouts: int
    level_runs: tuple[int, ...]
    num_states: int
    height: int
    bucket: Bucket | None


def layout(forest: Forest, *, height: int, bucket: Bucket | None = None) -> Layout:
    """The tables of a forest, attention tiles of at most `height` queries.

    Raises ValueError if the forest does not fit the bucket.
    """
    if bucket is not None and not bucket.fits(forest):
        raise ValueError(f"a forest of {forest.num_rows} rows does not fit into {bucket}")
    num_levels = forest.num_levels if bucket is None else bucket.levels
    runs_before = np.searchsorted(forest.run_level, np.arange(num_levels + 1))
    tables: dict[str, NDArray[np.integer]] = {
        "token_ids_R": forest.token_ids,
        "positions_3R": forest.positions,
        "ancestors_R3": forest.ancestors,
        "chunk_rows_CT": forest.chunk_rows,
        "chunk_first_C": forest.chunk_first,
        "chunk_len_C": forest.chunk_len,
        "path_chunks_CW": forest.path_chunks,
        "chunk_state_out_C": forest.chunk_state_out,
        "run_first_N": forest.run_first,
        "run_count_N": forest.run_count,
        "run_state_in_N": forest.run_state_in,
        "level_start_L": runs_before,
        "readout_rows_Q": forest.readout_rows,
        "tiles": row_tiles(forest, height),
        "places_R": row_places(forest),
        "readout_tiles": readout_tiles(forest),
        "readout_places_Q": readout_places(forest),
    }
    if bucket is None:
        shapes: dict[str, Size] = {name: table.shape for name, table in tables.items()}
        for name in ("tiles", "readout_tiles"):
            shapes[name] = (4, _aligned(shapes[name][1]))
        places = Places.one_after_another(shapes)
        buffer = np.zeros(places.total, np.int32)
    else:
        places, empty = padding(bucket, height)
        buffer = empty.copy()
    for name, table in tables.items():
        start, shape = places.of[name]
        if len(shape) == 1:
            buffer[start : start + len(table)] = table
        else:
            whole = buffer[start : start + shape[0] * shape[1]].reshape(shape)
            whole[: table.shape[0], : table.shape[1]] = table
    runs = runs_before.tolist()
    return Layout(
        buffer=buffer,
        places=places,
        num_rows=forest.num_rows,
        padded_rows=forest.num_rows if bucket is None else bucket.rows,
        num_readouts=len(forest.readout_rows),
        level_runs=tuple(stop - start for start, stop in pairwise(runs)),
        num_states=forest.num_states if bucket is None else bucket.chunks + 1,
        height=height,
        bucket=bucket,
    )


@cache
def padding(bucket: Bucket, height: int) -> tuple[Places, Ints]:
    """Where a bucket's tables lie, and the buffer of an empty pass, not to be written to.

    A padded readout reads row 0 again.
    """
    rows, chunks, readouts = bucket.rows, bucket.chunks, bucket.readouts
    empty: dict[str, tuple[Size, int]] = {
        "token_ids_R": ((rows,), 0),
        "positions_3R": ((3, rows), 0),
        "ancestors_R3": ((rows, 3), -1),
        "chunk_rows_CT": ((chunks, CHUNK), -1),
        "chunk_first_C": ((chunks,), 0),
        "chunk_len_C": ((chunks,), 0),
        "path_chunks_CW": ((chunks, bucket.windows), -1),
        "chunk_state_out_C": ((chunks,), -1),
        "run_first_N": ((chunks,), 0),
        "run_count_N": ((chunks,), 0),
        "run_state_in_N": ((chunks,), 0),
        "level_start_L": ((bucket.levels + 1,), 0),
        "readout_rows_Q": ((readouts,), 0),
        "tiles": ((4, _aligned(chunks * (CHUNK // height))), 0),
        "places_R": ((rows,), 0),
        "readout_tiles": ((4, _aligned(readouts)), 0),
        "readout_places_Q": ((readouts,), 0),
    }
    places = Places.one_after_another({name: shape for name, (shape, _) in empty.items()})
    buffer = np.zeros(places.total, np.int32)
    for name, (shape, value) in empty.items():
        start = places.of[name][0]
        buffer[start : start + prod(shape)] = value
    buffer.flags.writeable = False
    return places, buffer


def _aligned(size: int) -> int:
    return size + -size % ALIGNED
