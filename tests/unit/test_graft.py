"""A forest on trunks: each prompt's path, through every table, against its own token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adjudge.engine_door import Item, TokenIds
from adjudge.families import Readout
from adjudge.forest import CHUNK, Forest, count_rows, plan
from adjudge.graft import BEFORE, cut, graft
from adjudge.prefixes import Kept, Prefixes, path_of
from adjudge.reuse import plan_on


def ids(*values: int) -> TokenIds:
    return np.array(values, np.int32)


def check(
    forest: Forest,
    prompts: Sequence[TokenIds],
    trunks: Sequence[int],
    trunk_ids: Sequence[TokenIds],
) -> None:
    """Every table by walking each prompt's chunks, rows of trunks told by their place."""
    f, R, C = forest, forest.num_rows, forest.num_chunks
    tokens = np.concatenate([f.token_ids, *trunk_ids])
    lengths = [len(t) for t in trunk_ids]
    first = np.cumsum([0, *lengths])
    depth = np.concatenate([f.positions[0], *map(np.arange, lengths)])
    assert f.chunk_rows.shape == (C + sum(lengths) // CHUNK, CHUNK)
    assert (f.positions == f.positions[0]).all()
    slot = f.num_states - len(trunk_ids)
    run_of_first = dict(zip(f.run_first.tolist(), range(len(f.run_first)), strict=True))
    level_of_slot = {slot + t: 0 for t in range(len(trunk_ids))} | {0: -1}
    for run in range(len(f.run_first)):
        assert level_of_slot[int(f.run_state_in[run])] == f.run_level[run] - 1
        for c in range(f.run_first[run], f.run_first[run] + f.run_count[run]):
            if f.chunk_state_out[c] >= 0:
                level_of_slot[int(f.chunk_state_out[c])] = int(f.run_level[run])
    assert (np.diff(f.run_level) >= 0).all()

    for prompt, trunk, q in zip(prompts, trunks, f.prompt_readout, strict=True):
        start = lengths[trunk] if trunk >= 0 else 0
        end = f.readout_chunks[q]
        windows = -(-len(prompt) // CHUNK)
        path = f.path_chunks[end]
        assert (path[windows:] == -1).all() and path[windows - 1] == end
        rows = f.chunk_rows[path[:windows]].ravel()[: len(prompt)]
        assert tokens[rows].tolist() == prompt.tolist()
        assert depth[rows].tolist() == list(range(len(prompt)))
        assert rows[-1] == f.readout_rows[q]
        assert ((rows < R) == (np.arange(len(prompt)) >= start)).all()
        if trunk >= 0:
            assert rows[:start].tolist() == [*range(R + first[trunk], R + first[trunk] + start)]
        for w in range(start // CHUNK, windows):
            c = path[w]
            assert f.chunk_window[c] == w
            assert f.path_chunks[c, : w + 1].tolist() == path[: w + 1].tolist()
            assert f.chunk_parent[c] == (path[w - 1] if w else -1)
            # The state that the chunk starts from: its run's, or the chunk's before in the run.
            if c in run_of_first:
                source = f.run_state_in[run_of_first[c]]
                if w == start // CHUNK:
                    assert source == (slot + trunk if trunk >= 0 else 0)
                else:
                    assert source == f.chunk_state_out[path[w - 1]] > 0
            else:
                assert path[w - 1] == c - 1
        # The convolution's inputs: rows of the pass, or the last three of the trunk.
        before = [*(R + BEFORE * trunk + i if trunk >= 0 else -1 for i in range(BEFORE))]
        before += rows[start:].tolist()
        for place in range(len(prompt) - start):
            row = before[place + BEFORE]
            assert f.ancestors[row].tolist() == before[place : place + BEFORE][::-1]


@given(st.data())
def test_random_forests_on_random_trunks(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    trunk_ids = [
        rng.integers(0, 9, 64 * int(n)).astype(np.int32)
        for n in rng.integers(1, 5, data.draw(st.integers(0, 3)))
    ]
    prompts, trunks = [], []
    for _ in range(data.draw(st.integers(1, 10))):
        trunk = int(rng.integers(-1, len(trunk_ids)))
        tail = rng.integers(0, 9, data.draw(st.sampled_from([1, 2, 3, 4, 40, 64, 65, 150])))
        base = trunk_ids[trunk] if trunk >= 0 else ids()
        same = [p for p, t in zip(prompts, trunks, strict=True) if t == trunk]
        if same and data.draw(st.booleans()):
            other = same[int(rng.integers(len(same)))]
            base = other[: int(rng.integers(len(base), len(other) + 1))]
        prompts.append(np.concatenate([base, tail]).astype(np.int32))
        trunks.append(trunk)
    forest = graft(
        prompts,
        scopes=[0] * len(prompts),
        trunks=trunks,
        trunk_tokens=[len(t) for t in trunk_ids],
    )
    check(forest, prompts, trunks, trunk_ids)

    wanted = [
        (place, 64 * w)
        for place, (prompt, trunk) in enumerate(zip(prompts, trunks, strict=True))
        for w in range(1, len(prompt) // 64 + 1)
        if 64 * w > (len(trunk_ids[trunk]) if trunk >= 0 else 0)
    ]
    cuttings_of, cuttings = cut(forest, wanted)
    tokens = np.concatenate([forest.token_ids, *trunk_ids])
    for (place, num_tokens), cutting in zip(wanted, cuttings, strict=True):
        assert tokens[cutting.rows].tolist() == prompts[place][:num_tokens].tolist()
        assert (cutting.rows[-BEFORE:] < forest.num_rows).all()
        (chunk,) = np.flatnonzero(cuttings_of.chunk_state_out == cutting.slot)
        assert cuttings_of.chunk_rows[chunk].tolist() == cutting.rows[-64:].tolist()
    untouched = forest.chunk_state_out >= 0
    assert (cuttings_of.chunk_state_out == forest.chunk_state_out)[untouched].all()


def test_without_trunks_it_is_the_plain_forest() -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 2, 90).astype(np.int32) for _ in range(9)]
    found = graft(prompts, scopes=[0] * 9, trunks=[-1] * 9, trunk_tokens=[])
    expected = plan(prompts)
    for name in Forest.__dataclass_fields__:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def items(*prompts: TokenIds, salt: str | None = None, keep_tokens: int = 0) -> list[Item]:
    return [Item(prompt, Readout(), 0, keep_tokens, salt) for prompt in prompts]


def keep(prefixes: Prefixes, prefix: TokenIds, salt: str | None = None) -> Kept:
    assert prefixes.reserve(1, ())
    kept = Kept(salt, path_of(prefix, len(prefix)), 1, object())
    prefixes.add(kept)
    return kept


def test_prompts_take_their_own_longest_entry_and_compute_nothing_twice() -> None:
    rng = np.random.default_rng(1)
    text, prefixes = rng.integers(0, 99, 400).astype(np.int32), Prefixes(9)
    short, long = keep(prefixes, text[:64]), keep(prefixes, text[:192])
    prompts = [text[:100], text[:191], text[:192], text[:193], text[:400], ids(7, 8)]
    reuse = plan_on(items(*prompts), prefixes)
    assert reuse.hit_tokens == (64, 64, 64, 192, 192, 0)
    assert set(reuse.trunks) == {short, long} and reuse.reused_rows == 256
    assert reuse.forest.num_rows == 128 + 208 + 2
    assert reuse.is_current(prefixes)
    check(reuse.forest, prompts, [0, 0, 0, 1, 1, -1], [text[:64], text[:192]])


def test_what_is_kept_where_the_request_parts_and_where_it_parts_from_an_entry() -> None:
    rng = np.random.default_rng(2)
    text, prefixes = rng.integers(0, 99, 400).astype(np.int32), Prefixes(9)
    keep(prefixes, text[:320])
    prompt = np.concatenate([text[:200], ids(*range(200, 300))])
    reuse = plan_on(items(prompt, prompt[:299], keep_tokens=256), prefixes)
    assert [len(k.cutting.rows) for k in reuse.keeps] == [256, 192]
    keep(prefixes, prompt[:256])
    assert not reuse.is_current(prefixes)
    again = plan_on(items(prompt, keep_tokens=256), prefixes)
    assert not again.keeps and again.hit_tokens == (256,)


def test_a_plan_is_current_until_its_entries_go_or_better_ones_come() -> None:
    rng = np.random.default_rng(3)
    text, prefixes = rng.integers(0, 99, 400).astype(np.int32), Prefixes(2)
    keep(prefixes, text[:64])
    reuse = plan_on(items(text), prefixes)
    keep(prefixes, ids(*range(64)))
    assert reuse.is_current(prefixes), "another prompt's entry changes nothing"
    keep(prefixes, ids(*range(1, 65)))
    assert not reuse.is_current(prefixes), "its entry went"


def test_equal_prompts_of_two_salts_keep_their_own_and_compute_no_more_than_cold() -> None:
    rng = np.random.default_rng(4)
    text, prefixes = rng.integers(0, 99, 200).astype(np.int32), Prefixes(9)
    of_a = keep(prefixes, text[:128], salt="a")
    both = [*items(text, salt="a", keep_tokens=128), *items(text, salt="b", keep_tokens=128)]
    reuse = plan_on(both, prefixes)
    assert reuse.forest.num_rows <= count_rows([text])
    assert [(k.salt, len(k.cutting.rows)) for k in reuse.keeps] == [("b", 128)]
    of_b = keep(prefixes, text[:128], salt="b")
    reuse = plan_on(both, prefixes)
    assert reuse.trunks == (of_a, of_b) and reuse.hit_tokens == (128, 128)
    assert reuse.forest.num_rows == 2 * 72
