"""Which sizes captured passes have, and which of them a forest is padded to."""

from __future__ import annotations

import numpy as np
import pytest

from adjudge.buckets import FEW_ROWS, MOST_CHUNKS, MOST_ROWS, Bucket, bucket_of, ladder
from adjudge.checkpoint import GEOMETRIES
from adjudge.forest import CHUNK, Forest, plan
from adjudge.layout import ALIGNED, padding
from adjudge.ops import linear


def forest_of(state: int, tail: int = 0, count: int = 0) -> Forest:
    rng = np.random.default_rng(state)
    shared = rng.integers(0, 10**9, state)
    tails = rng.integers(0, 10**9, (max(count, 1), tail))
    return plan([np.concatenate([shared, one]) for one in tails])


LADDER = ladder(16_384, GEOMETRIES["9b"].layer_weights)


def test_larger_layers_have_graphs_for_fewer_rows() -> None:
    most = {
        name: ladder(16_384, GEOMETRIES[name].layer_weights)[-1].rows
        for name in ("2b", "9b", "27b")
    }
    assert most == {"2b": MOST_ROWS, "9b": MOST_ROWS, "27b": 2304}
    assert ladder(64, GEOMETRIES["2b"].layer_weights)[-1].rows == 64
    assert ladder(63, GEOMETRIES["2b"].layer_weights) == ()


def test_buckets_ascend_and_none_is_there_twice() -> None:
    order = [(bucket.rows, bucket.chunks, bucket.levels) for bucket in LADDER]
    assert order == sorted(set(order))
    assert max(bucket.chunks for bucket in LADDER) == MOST_CHUNKS


def test_a_captured_pass_pads_no_product_of_its_last_layer() -> None:
    for bucket in LADDER:
        (num_readouts,) = padding(bucket, CHUNK)[0].of["readout_rows_Q"][1]
        assert num_readouts == bucket.readouts >= linear.FEWEST_ROWS


@pytest.mark.parametrize("rows", [1, 64, 65, 300, 512, 513, 1000, 2049, MOST_ROWS])
def test_one_prompt_takes_the_smallest_size_and_a_level_only_where_it_is_cheap(rows: int) -> None:
    forest = forest_of(rows)
    bucket = bucket_of(forest, LADDER, 768)
    assert bucket is not None and bucket.fits(forest)
    assert bucket.rows == min(b.rows for b in LADDER if b.rows >= rows)
    assert bucket.levels == (1 if rows <= FEW_ROWS else 2)


def test_a_forest_that_no_size_holds_runs_without() -> None:
    assert bucket_of(forest_of(MOST_ROWS + 1), LADDER, 768) is None
    assert bucket_of(forest_of(10), (), 768) is None


def test_short_candidates_are_padded_far_only_while_launching_takes_longer() -> None:
    """100 candidates of 3 tokens: 102 chunks, which sizes of their rows have no room for."""
    short = forest_of(100, 3, 100)
    assert (short.num_rows, short.num_chunks) == (400, 101)
    wide = next(bucket for bucket in LADDER if bucket.chunks >= 101)
    assert bucket_of(short, LADDER, 768) is None
    assert bucket_of(short, LADDER, wide.rows) == wide
    assert bucket_of(short, LADDER, wide.rows - 1) is None


def test_candidates_of_a_released_length_are_padded_to_their_own_size() -> None:
    """25 and 38 tokens, behind states that fork inside a chunk."""
    for state, tail, count in ((200, 25, 60), (100, 28, 28), (1000, 38, 32), (2000, 25, 80)):
        forest = forest_of(state, tail, count)
        bucket = bucket_of(forest, LADDER, 768)
        assert bucket is not None
        assert bucket.rows == min(b.rows for b in LADDER if b.rows >= forest.num_rows)


@pytest.mark.parametrize("height", [16, CHUNK])
def test_tables_and_rows_of_tiles_begin_aligned(height: int) -> None:
    """Kernels are compiled anew for addresses of another alignment."""
    for bucket in LADDER:
        places, _ = padding(bucket, height)
        assert all(start % ALIGNED == 0 for start, _ in places.of.values())
        for name in ("tiles", "readout_tiles"):
            assert places.of[name][1][1] % ALIGNED == 0, (bucket, name)


def test_a_bucket_holds_what_it_says() -> None:
    forest = forest_of(100, 3, 5)
    sizes = (forest.num_rows, forest.num_chunks, forest.path_chunks.shape[1], forest.num_levels)
    assert Bucket(*sizes).fits(forest)
    for index in range(4):
        smaller = list(sizes)
        smaller[index] -= 1
        assert not Bucket(*smaller).fits(forest)
