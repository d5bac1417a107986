"""The planner: every table against a slow restatement, over random and adversarial prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.forest import CHUNK, Forest, count_rows, plan

SPLITS = [0, 1, 2, 3, 62, 63, 64, 65, 66, 127, 128, 129, 130]


def check(forest: Forest, prompts: Sequence[np.ndarray]) -> None:
    """Every invariant of Forest's docstring, by walking each prompt's path row by row."""
    f = forest
    prefixes = {tuple(p[: i + 1].tolist()): None for p in prompts for i in range(len(p))}
    assert f.num_rows == len(prefixes) == count_rows(prompts)
    assert f.num_prompt_tokens == sum(map(len, prompts))
    assert (f.positions == f.positions[0]).all()

    path_of: dict[int, list[int]] = {}
    for r in range(f.num_rows):
        parent = int(f.ancestors[r, 0])
        assert parent < r
        path_of[r] = [*(path_of[parent] if parent >= 0 else []), r]
        back = [*path_of[r][-2::-1], -1, -1, -1][:3]
        assert f.ancestors[r].tolist() == back
        assert f.positions[0, r] == len(path_of[r]) - 1

    assert sorted(set(f.readout_rows.tolist())) == f.readout_rows.tolist()
    for prompt, q in zip(prompts, f.prompt_readout, strict=True):
        assert f.token_ids[path_of[int(f.readout_rows[q])]].tolist() == prompt.tolist()

    new_rows = []
    for c in range(f.num_chunks):
        length, first = int(f.chunk_len[c]), int(f.chunk_first[c])
        assert 0 <= first < length <= CHUNK
        rows = f.chunk_rows[c, :length]
        assert (f.chunk_rows[c, length:] == -1).all()
        path, window = path_of[int(rows[-1])], int(f.chunk_window[c])
        assert rows.tolist() == path[window * CHUNK :] and len(path) <= (window + 1) * CHUNK
        fresh = rows[first:].tolist()
        assert fresh == list(range(fresh[0], fresh[0] + len(fresh)))
        new_rows += fresh
        parent = int(f.chunk_parent[c])
        if window == 0:
            assert parent == -1
        else:
            assert f.chunk_rows[parent].tolist() == path[(window - 1) * CHUNK : window * CHUNK]
        chain = [*f.path_chunks[parent, :window].tolist(), c] if window else [c]
        assert f.path_chunks[c].tolist() == chain + [-1] * (f.path_chunks.shape[1] - len(chain))
    assert sorted(new_rows) == list(range(f.num_rows))
    for row, c in zip(f.readout_rows, f.readout_chunks, strict=True):
        assert row in f.chunk_rows[c, f.chunk_first[c] : f.chunk_len[c]]

    runs_of_chunk, level_of_slot = [], {0: -1}
    assert (np.diff(f.run_level) >= 0).all()
    for first, count, level, slot in zip(
        f.run_first, f.run_count, f.run_level, f.run_state_in, strict=True
    ):
        parent = int(f.chunk_parent[first])
        assert slot == (f.chunk_state_out[parent] if parent >= 0 else 0)
        assert level_of_slot[int(slot)] == level - 1 or (slot == 0 and level == 0)
        for c in range(first, first + count):
            assert c == first or f.chunk_parent[c] == c - 1
            if f.chunk_state_out[c] >= 0:
                level_of_slot[int(f.chunk_state_out[c])] = int(level)
            runs_of_chunk.append(c)
    assert sorted(runs_of_chunk) == list(range(f.num_chunks))
    assert len(level_of_slot) == f.num_states
    assert f.num_levels == f.run_level.max() + 1


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@given(st.data())
def test_random_forests_hold_every_invariant(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    prompts: list[np.ndarray] = []
    for _ in range(data.draw(st.integers(1, 12))):
        tail = rng.integers(0, 3, data.draw(st.sampled_from([1, 2, 5, 40, 64, 65, 150])))
        keep = 0
        base = ids()
        if prompts and data.draw(st.booleans()):
            base = prompts[int(rng.integers(len(prompts)))]
            keep = min(len(base), data.draw(st.sampled_from(SPLITS)))
        prompts.append(np.concatenate([base[:keep], tail]).astype(np.int32))
    check(plan(prompts), prompts)


@pytest.mark.parametrize("split", range(131))
def test_a_fork_at_every_split_point(split: int) -> None:
    rng = np.random.default_rng(split)
    state = rng.integers(0, 1000, split)
    prompts = [
        np.concatenate([state, [2000 + i], rng.integers(0, 1000, 50 * i)]).astype(np.int32)
        for i in range(4)
    ]
    forest = plan(prompts)
    check(forest, prompts)
    assert forest.num_rows == split + sum(1 + 50 * i for i in range(4))


def test_a_prefix_of_another_prompt_and_repeats_add_no_rows() -> None:
    long = np.arange(200, dtype=np.int32)
    prompts = [long, long[:70], long[:64], long, long[:1]]
    forest = plan(prompts)
    check(forest, prompts)
    assert forest.num_rows == 200
    assert forest.readout_rows[forest.prompt_readout].tolist() == [199, 69, 63, 199, 0]


def test_255_candidates_over_a_long_state() -> None:
    rng = np.random.default_rng(0)
    state = rng.integers(0, 248_000, 3072)
    prompts = [np.concatenate([state, rng.integers(0, 248_000, 38)]) for _ in range(255)]
    prompts = [p.astype(np.int32) for p in prompts]
    forest = plan(prompts)
    assert forest.num_rows == 3072 + 255 * 38
    assert (forest.num_chunks, forest.num_levels, forest.num_states) == (48 + 255, 2, 2)


def test_the_order_of_the_prompts_moves_no_row() -> None:
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 2, 90).astype(np.int32) for _ in range(9)]
    there, back = plan(prompts), plan(prompts[::-1])
    assert (there.token_ids == back.token_ids).all()
    assert (there.prompt_readout == back.prompt_readout[::-1]).all()


def test_four_levels_of_forks_are_four_generations_of_runs() -> None:
    prompts = [ids()]
    for level in range(3):
        prompts = [
            np.concatenate([p, np.full(64, 10 * level + i, np.int32)])
            for p in prompts
            for i in range(2)
        ]
    forest = plan(prompts)
    check(forest, prompts)
    assert forest.num_levels == 3


def test_prompts_of_different_scopes_share_nothing() -> None:
    prompt = np.arange(70, dtype=np.int32)
    forest = plan([prompt, prompt, prompt], scopes=[0, 1, 0])
    assert forest.num_rows == 140
    assert forest.readout_rows[forest.prompt_readout].tolist() == [69, 139, 69]


@pytest.mark.parametrize("prompts", [[], [ids(1), ids()]])
def test_nothing_to_plan_is_an_error(prompts: list[np.ndarray]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        plan(prompts)
