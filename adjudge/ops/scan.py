"""In which order a CPU runs the delta rule over the chunks of a forest.

The reference halves the chunks: arithmetic inside a tile grows with the square of its length.
Runs of one level go through their tiles in step, at most MOST_RUNS together, so that the tiles
of one step lie next to each other and their states form one batch. Runs are ordered by length:
those still active at a step are always the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from adjudge.ops.tables import Tables

TILE = 32
"""Positions of a tile; a chunk is two."""

MOST_RUNS = 32


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
    """Runs of one level that advance together.

    rows_MT int64: rows of the group's tiles, in the order of the steps; the number of rows R
    stands for padding; fresh_F: flat tile places of the rows that are new in these tiles, and
    fresh_row_F: those rows; state_in: slot of each run, or None where all start from zero.
    """

    rows_MT: Tensor
    fresh_F: Tensor
    fresh_row_F: Tensor
    state_in: Tensor | None
    steps: tuple[Step, ...]


def groups(tables: Tables) -> Iterator[Group]:
    """The groups of a forest, level by level."""
    chunk_len = tables.chunk_len_C.tolist()
    keep_as = tables.chunk_state_out_C.tolist()
    firsts, counts = tables.run_first_N.tolist(), tables.run_count_N.tolist()
    begin = 0
    for num_runs in tables.level_runs:
        lengths = []
        for run in range(begin, begin + num_runs):
            if counts[run]:
                last = firsts[run] + counts[run] - 1
                num_tiles = 2 * counts[run] - (chunk_len[last] <= TILE)
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
    tiles: list[int] = []
    steps: list[Step] = []
    for step in range(lengths[0][1]):
        active = [run for run, (_, tiles_, _) in zip(runs, lengths, strict=True) if step < tiles_]
        chunks = [firsts[run] + step // 2 for run in active]
        kept = [(i, keep_as[c]) for i, c in enumerate(chunks) if step % 2 and keep_as[c] > 0]
        start = len(tiles)
        tiles += [2 * chunk + step % 2 for chunk in chunks]
        num_updated = sum(step + 1 < needed for needed, _, _ in lengths)
        steps.append(Step(start, len(tiles), num_updated, tuple(kept)))

    tile_M = torch.tensor(tiles)
    rows_MT = tables.chunk_rows_CT.view(-1, TILE)[tile_M].long()
    place_T = torch.arange(TILE)
    replayed_M = tables.chunk_first_C.long()[tile_M // 2] - tile_M % 2 * TILE
    fresh_F = ((rows_MT >= 0) & (place_T >= replayed_M[:, None])).flatten().nonzero().squeeze(1)
    fresh_row_F = rows_MT.flatten()[fresh_F]
    slots = tables.run_state_in_N.long()[torch.tensor(runs)]
    return Group(
        rows_MT=rows_MT.masked_fill_(rows_MT < 0, tables.ancestors_R3.shape[0]),
        fresh_F=fresh_F,
        fresh_row_F=fresh_row_F,
        state_in=slots if int(slots.max()) > 0 else None,
        steps=tuple(steps),
    )
