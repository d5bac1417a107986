"""The tables of attention: every row a query once, siblings side by side, each with its place."""

from __future__ import annotations

import numpy as np
import pytest

from adjudge.buckets import Bucket
from adjudge.forest import CHUNK, Forest, plan
from adjudge.layout import layout
from adjudge.tiles import SHARED_WINDOWS, row_tiles


def forest_of(seed: int, *, state: int, tails: list[int]) -> Forest:
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, 10**9, state)
    return plan([np.concatenate([shared, rng.integers(0, 10**9, n)]) for n in tails])


def table(forest: Forest, name: str, bucket: Bucket | None = None) -> np.ndarray:
    laid = layout(forest, height=CHUNK, bucket=bucket)
    start, shape = laid.places.of[name]
    return laid.buffer[start : start + int(np.prod(shape))].reshape(shape)


FORESTS = [
    forest_of(0, state=300, tails=[3, 5, 20, 61, 70, 1, 1, 200]),
    forest_of(1, state=256, tails=[38] * 21),
    forest_of(2, state=1, tails=[1, 64, 65, 200]),
    forest_of(3, state=64 * SHARED_WINDOWS - 1, tails=[4, 4, 4]),
]


@pytest.mark.parametrize("forest", FORESTS)
@pytest.mark.parametrize("height", [16, 32, 64])
def test_every_row_is_a_query_once(forest: Forest, height: int) -> None:
    query, count, position, chunk = row_tiles(forest, height)
    rows = [row for q, n in zip(query, count, strict=True) for row in range(q, q + n)]
    assert sorted(rows) == list(range(forest.num_rows))
    assert int(count.max()) <= height
    assert np.array_equal(position, forest.positions[0, query])
    assert len(query) <= forest.num_chunks * (CHUNK // height)
    spans = forest.positions[0] // height
    for q, n, p, c in zip(query, count, position, chunk, strict=True):
        assert set(spans[q : q + n]) == {p // height}
        assert q in forest.chunk_rows[c, forest.chunk_first[c] : forest.chunk_len[c]]


@pytest.mark.parametrize("forest", FORESTS)
def test_a_place_is_where_a_row_is_new(forest: Forest) -> None:
    place = table(forest, "places_R")
    assert np.array_equal(forest.chunk_rows.ravel()[place], np.arange(forest.num_rows))
    assert np.all(place % CHUNK >= forest.chunk_first[place // CHUNK])
    of_readouts = table(forest, "readout_places_Q")
    assert np.array_equal(of_readouts, place[forest.readout_rows])


@pytest.mark.parametrize("forest", FORESTS)
def test_rows_of_one_tile_have_one_path_before_their_chunks(forest: Forest) -> None:
    place = table(forest, "places_R")
    query, count, _, first_chunk = row_tiles(forest, CHUNK)
    for q, n, c in zip(query, count, first_chunk, strict=True):
        chunks = place[q : q + n] // CHUNK
        assert chunks[0] == c
        # A program walks them as one range of chunks.
        assert set(np.diff(chunks)) <= {0, 1}
        assert len(set(forest.chunk_parent[chunks])) == 1
        assert len(set(chunks)) == 1 or forest.chunk_window[c] >= SHARED_WINDOWS


def test_siblings_fill_tiles_only_behind_a_long_path() -> None:
    siblings = FORESTS[1]
    _, count, position, _ = row_tiles(siblings, CHUNK)
    assert sorted(count[position >= 256]) == [30, *[64] * 12]
    _, count, position, _ = row_tiles(forest_of(1, state=192, tails=[38] * 21), CHUNK)
    assert list(count[position >= 192]) == [38] * 21


def test_places_of_a_padded_pass_are_those_of_its_rows() -> None:
    forest = FORESTS[0]
    bucket = Bucket(forest.num_rows + 50, forest.num_chunks + 3, 12, forest.num_levels)
    padded = table(forest, "places_R", bucket)
    assert np.array_equal(padded[: forest.num_rows], table(forest, "places_R"))
    assert not padded[forest.num_rows :].any()
