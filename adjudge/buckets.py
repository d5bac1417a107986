"""The sizes that captured passes have: which there are, and which of them a forest is padded to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adjudge.forest import CHUNK, Forest

FEWEST_READOUTS = 64
"""Rows of a captured pass's last layer, ops.linear.FEWEST_ROWS: with fewer its products would be
padded one by one."""

MOST_ROWS = 4096
MOST_WORK = MOST_ROWS * 217_000_000
"""Rows, and rows times weights of a layer, above which a graph gains less than one percent: kernels
of a stream start a little later after each other than those of a graph."""
LAUNCHED_WORK = 768 * 217_000_000
"""Rows times weights of a layer that take as long as a slow host needs to launch the layer."""

FEW_ROWS = 512
"""Rows up to which a level that a pass does not need is worth a graph without it."""
MOST_CHUNKS = 128
"""Of any bucket: they share the memory of the one with the most."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sizes that a pass is padded to. levels: generations of runs, a kernel's launch for each."""

    rows: int
    chunks: int
    windows: int
    levels: int

    @property
    def readouts(self) -> int:
        """Rows of its last layer."""
        return max(self.chunks, FEWEST_READOUTS)

    def fits(self, forest: Forest) -> bool:
        """Whether all its tables have room for a forest that reads no kept state."""
        return (
            len(forest.token_ids) <= self.rows
            and len(forest.chunk_len) <= self.chunks
            and forest.path_chunks.shape[1] <= self.windows
            and forest.num_levels <= self.levels
        )


def ladder(most_rows: int, layer_weights: int) -> tuple[Bucket, ...]:
    """The buckets that graphs are captured of, smallest first: up to `most_rows` rows, and up to
    where a graph ceases to pay. layer_weights: weights of a layer that a row is multiplied with.

    Sizes are those after which products take a step, as docs/gpu.md has them.
    """
    most_rows = min(most_rows, MOST_ROWS, MOST_WORK // layer_weights)
    sizes = [
        *range(64, 257, 16), 288, 320, 384, 416, 480, 512, 576, 640, 768, 800, 864, 896,
        *range(1024, MOST_ROWS + 1, 128),
    ]  # fmt: skip
    return tuple(
        Bucket(rows, chunks, rows // CHUNK + 1, levels)
        for rows in sizes
        if rows <= most_rows
        for chunks, levels in _variants(rows)
    )


def _variants(rows: int) -> Iterable[tuple[int, int]]:
    """(Chunks, levels) of a size: for a few prompts, for a candidate to every 32 rows and 16 more,
    and to every 16 rows, MOST_CHUNKS at most. An empty chunk costs a little of every mixer."""
    few, some, many = rows // CHUNK + 6, rows // 32 + 16, rows // 16 + 16
    if rows <= FEW_ROWS:
        return (few, 1), (few, 2), (some, 2), (some, 3), (many, 3)
    most = (few, 2), (min(some, MOST_CHUNKS), 3), (min(many, MOST_CHUNKS), 3)
    return dict.fromkeys(most)


def bucket_of(forest: Forest, captured: Iterable[Bucket], launched_rows: int) -> Bucket | None:
    """The smallest captured bucket that the forest fits, or None: then it runs without.

    captured: smallest first. More padding than the rows alone would have pays only up to
    launched_rows, below which launching a pass takes longer than the pass.
    """
    large_enough = [bucket for bucket in captured if bucket.rows >= forest.num_rows]
    if not large_enough:
        return None
    most_rows = max(large_enough[0].rows, launched_rows)
    worth = (bucket for bucket in large_enough if bucket.rows <= most_rows)
    return next((bucket for bucket in worth if bucket.fits(forest)), None)
