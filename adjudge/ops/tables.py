"""The integers that the mixers need, as tensors of one device. All int32; −1 means "none".

Legend: R rows, C chunks, T positions of a chunk (64), W windows of the longest path, N runs,
M attention tiles, Q readout rows. Entries past the used ones (padding to a bucket) are empty:
a row without a chunk, a chunk of length 0, a run or tile of count 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from adjudge.ops.scan import Group

CHUNK = 64
"""Path positions of a chunk; the grid starts at position 0 of every path."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Attention's queries in tiles: neighbours inside one chunk, or with a height of 64 in several
    that follow each other and have one path before them.

    query_M: the tile's first query, a row of q; the others follow it; count_M: how many;
    position_M: path position of the first; chunk_M: the chunk that it lies in; place_Q: of every
    query, 64 · chunk + offset; height: most queries of a tile, dividing 64; all lie in one span of
    positions [height·i, height·(i + 1)).
    """

    query_M: Tensor
    count_M: Tensor
    position_M: Tensor
    chunk_M: Tensor
    place_Q: Tensor
    height: int


@dataclass(frozen=True)
class Tables:
    """A forest on the device; see forest.Forest for the meaning of each table.

    level_start_L: first run of each level, then the number of runs; level_runs: runs of each
    level, on the host, in a captured pass 0; num_states: state slots, slot 0 being
    the zero state; tiles: every row as a query of its own; readout_tiles: query i is row
    readout_rows_Q[i]. chunk_rows_CT may have more chunks than the other tables: key blocks of rows
    past R, which attention alone reads.
    """

    token_ids_R: Tensor
    positions_3R: Tensor
    ancestors_R3: Tensor
    chunk_rows_CT: Tensor
    chunk_first_C: Tensor
    chunk_len_C: Tensor
    path_chunks_CW: Tensor
    chunk_state_out_C: Tensor
    run_first_N: Tensor
    run_count_N: Tensor
    run_state_in_N: Tensor
    level_start_L: Tensor
    level_runs: tuple[int, ...]
    num_states: int
    tiles: Tiles
    readout_rows_Q: Tensor
    readout_tiles: Tiles

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The order in which a CPU runs the delta rule; made once for all layers."""
        from adjudge.ops.scan import groups

        return tuple(groups(self))
