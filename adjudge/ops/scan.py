"""In which order a CPU runs the delta rule over the chunks of a forest.

The reference halves the chunks into tiles: the arithmetic inside a tile grows with the square of
its length. Runs of one level go through their tiles in step, at most MOST_RUNS together, so that
the tiles of one step lie next to each other and their states form one batch. Runs are ordered by
length: those still active at a step are always the first ones.

Legend: M tiles, T positions of a tile, N runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adjudge.ops.tables import CHUNK, Tables

TILE = 32
"""Positions of a tile."""

BEFORE = 3
"""Rows before a tile that its convolution reads."""

MOST_RUNS = 8


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [row, row + count) of the forest, at positions `place` … of a tile."""

    place: int
    row: int
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """Tiles [start, stop) of the group, one for each of its first (stop − start) runs.

    num_updated: the first runs whose state is needed after this step; kept: (run, state slot)
    of each state that later levels start from.
    """

    start: int
    stop: int
    num_updated: int
    kept: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one level that advance together; tiles are in the order of the steps.

    rows_MT int64: rows of the tiles, −1 behind a path's end; windows: for each tile, the rows of
    its BEFORE + T convolution inputs, what no span covers being zero; fresh: for each tile, the
    rows that are new in it (count 0 for none); state_in int64 [N]: the runs' slots, or None
    where all start from zero.
    """

    rows_MT: Tensor
    windows: tuple[tuple[Span, ...], ...]
    fresh: tuple[Span, ...]
    state_in: Tensor | None
    steps: tuple[Step, ...]


def groups(tables: Tables) -> Iterator[Group]:
    """The groups of a forest, level by level."""
    chunk_len = tables.chunk_len_C.tolist()
    keep_as = tables.chunk_state_out_C.tolist()
    firsts, counts = tables.run_first_N.tolist(), tables.run_count_N.tolist()
    per_chunk = CHUNK // TILE
    begin = 0
    for num_runs in tables.level_runs:
        lengths = []
        for run in range(begin, begin + num_runs):
            if counts[run]:
                last = firsts[run] + counts[run] - 1
                num_tiles = per_chunk * (counts[run] - 1) - (-chunk_len[last] // TILE)
                lengths.append((num_tiles + (keep_as[last] > 0), num_tiles, -run))
        lengths.sort(reverse=True)
        begin += num_runs
        for at in range(0, len(lengths), MOST_RUNS):
            yield _group(tables, lengths[at : at + MOST_RUNS], firsts, keep_as)


def _group(
    tables: Tables, lengths: list[tuple[int, int, int]], firsts: list[int], keep_as: list[int]
) -> Group:
    """lengths: (steps after which the state is needed, tiles, −run) of each run, descending."""
    runs = [-negative for _, _, negative in lengths]
    per_chunk = CHUNK // TILE
    tiles: list[int] = []
    steps: list[Step] = []
    for step in range(lengths[0][1]):
        part = step % per_chunk
        active = [run for run, (_, number, _) in zip(runs, lengths, strict=True) if step < number]
        chunks = [firsts[run] + step // per_chunk for run in active]
        ends = part == per_chunk - 1
        kept = [(i, keep_as[c]) for i, c in enumerate(chunks) if ends and keep_as[c] > 0]
        start = len(tiles)
        tiles += [per_chunk * chunk + part for chunk in chunks]
        num_updated = sum(step + 1 < needed for needed, _, _ in lengths)
        steps.append(Step(start, len(tiles), num_updated, tuple(kept)))

    tile_M = np.array(tiles)
    rows_MT = tables.chunk_rows_CT.numpy().reshape(-1, TILE)[tile_M].astype(np.int64)
    before_M3 = tables.ancestors_R3.numpy()[rows_MT[:, 0], :BEFORE][:, ::-1]
    replayed_M = tables.chunk_first_C.numpy()[tile_M // per_chunk] - tile_M % per_chunk * TILE
    slots = tables.run_state_in_N[torch.tensor(runs)].long()
    return Group(
        rows_MT=torch.from_numpy(rows_MT),
        windows=tuple(map(_spans, np.concatenate([before_M3, rows_MT], axis=1))),
        fresh=tuple(_fresh(row, first) for row, first in zip(rows_MT, replayed_M, strict=True)),
        state_in=slots if int(slots.max()) > 0 else None,
        steps=tuple(steps),
    )


def _spans(rows: NDArray[np.int64]) -> tuple[Span, ...]:
    """The rows ≥ 0 as spans of consecutive ones."""
    places = np.flatnonzero(rows >= 0)
    breaks = np.flatnonzero(np.diff(rows[places]) != 1) + 1
    parts = np.split(places, breaks)
    return tuple(Span(int(part[0]), int(rows[part[0]]), len(part)) for part in parts)


def _fresh(rows: NDArray[np.int64], replayed: int) -> Span:
    """The rows of a tile past its first `replayed` positions."""
    place = max(0, int(replayed))
    count = int((rows[place:] >= 0).sum())
    return Span(place, int(rows[place]) if count else -1, count)
