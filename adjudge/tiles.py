"""Attention's queries in tiles: neighbouring rows that read the same chunks before their own.

A tile is a column (query, count, position, chunk): its first query, how many follow each other, the
first one's path position and the chunk where it is new.

Legend: R rows, M tiles, Q readout rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adjudge.forest import CHUNK, Forest, Ints

SHARED_WINDOWS = 4
"""Chunks before theirs from which queries of sibling chunks share a tile: they read these once for
all of them, and each sibling's own."""


def row_tiles(forest: Forest, height: int) -> Ints:
    """[4, M]: the new rows of every chunk, cut at multiples of `height` positions; for whole chunks
    also those of several, see `shared_tiles`."""
    if height == CHUNK:
        return shared_tiles(forest)
    span = np.arange(CHUNK // height) * height
    begin = np.clip(forest.chunk_first[:, None], span, span + height)
    stop = np.clip(forest.chunk_len[:, None], span, span + height)
    chunk, part = np.nonzero(stop > begin)
    begin, count = begin[chunk, part], (stop - begin)[chunk, part]
    position = forest.chunk_window[chunk] * CHUNK + begin
    return np.stack([forest.chunk_rows[chunk, begin], count, position, chunk]).astype(np.int32)


def shared_tiles(forest: Forest) -> Ints:
    """[4, M]: new rows in order, CHUNK to a tile; neighbouring chunks share tiles if they continue
    one path of SHARED_WINDOWS chunks or more. A tile's position and chunk are its first row's."""
    rows, parent = forest.chunk_len - forest.chunk_first, forest.chunk_parent
    first_row = np.cumsum(rows) - rows
    goes_on = (parent[1:] == parent[:-1]) & (forest.chunk_window[1:] >= SHARED_WINDOWS)
    group = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    group_rows = np.add.reduceat(rows, group)
    tiles = -(-group_rows // CHUNK)
    of = np.repeat(np.arange(len(group)), tiles)
    before = CHUNK * (np.arange(len(of)) - np.repeat(np.cumsum(tiles) - tiles, tiles))
    query, count = first_row[group[of]] + before, np.minimum(CHUNK, group_rows[of] - before)
    chunk = np.searchsorted(first_row, query, side="right") - 1
    offset = forest.chunk_first[chunk] + query - first_row[chunk]
    position = forest.chunk_window[chunk] * CHUNK + offset
    return np.stack([query, count, position, chunk]).astype(np.int32)


def readout_tiles(forest: Forest) -> Ints:
    """[4, Q]: one tile for each readout row."""
    chunk = forest.readout_chunks
    position = forest.chunk_window[chunk] * CHUNK + readout_places(forest) % CHUNK
    return np.stack([np.arange(len(chunk)), np.ones_like(chunk), position, chunk]).astype(np.int32)


def row_places(forest: Forest) -> NDArray[np.integer]:
    """[R]: where each row is new, CHUNK · chunk + offset."""
    return np.flatnonzero(forest.is_new)


def readout_places(forest: Forest) -> NDArray[np.integer]:
    """[Q]: the same of the readout rows, each of which ends its chunk."""
    return CHUNK * forest.readout_chunks + forest.chunk_len[forest.readout_chunks] - 1
