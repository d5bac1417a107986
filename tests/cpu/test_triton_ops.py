"""Every Triton kernel against its reference, in Triton's interpreter, on small odd shapes.

The interpreter has no BF16 products, so values are FP32 here; the roundings run on a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adjudge.buckets import Bucket
from adjudge.device_tables import to_device
from adjudge.forest import plan
from adjudge.graft import cut, graft
from adjudge.layout import layout
from adjudge.ops import activation, attention, delta, norm, rotary
from adjudge.ops.refusal import Refused
from adjudge.ops.tables import Tables
from adjudge.tiles import row_tiles

triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1", allow_module_level=True)

from adjudge.ops import triton_attention, triton_delta, triton_rows, triton_scan  # noqa: E402

# The interpreter of Triton 3.6 makes loop bounds of one-element arrays.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

CPU = torch.device("cpu")
HEIGHT = 64
"""Of an attention tile on a GPU; the reference takes halves."""


def prompts(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    state = rng.integers(0, 90, 75)
    tails = [rng.integers(0, 90, n) for n in (1, 20, 61)]
    made = [np.concatenate([state, tail]) for tail in tails] + [rng.integers(0, 90, 66), state]
    return [prompt.astype(np.int32) for prompt in made]


def tables_of(
    made: list[np.ndarray], *, padded: bool = False, height: int = HEIGHT
) -> tuple[Tables, int]:
    forest = plan(made)
    windows = forest.path_chunks.shape[1] + 1
    bucket = Bucket(forest.num_rows + 9, forest.num_chunks + 3, windows, 3) if padded else None
    return to_device(layout(forest, height=height, bucket=bucket), CPU), forest.num_rows


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def close(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).norm() / expected.norm()) < 3e-6


def test_rows() -> None:
    x, weight = normal(5, 96), normal(96, seed=2)
    close(triton_rows.rms_norm(x, weight, eps=1e-6), norm.rms_norm(x, weight, eps=1e-6))
    close(triton_rows.silu_mul(x), activation.silu_mul(x))
    o, z, scale = normal(5, 3, 32), normal(5, 100)[:, 4:], normal(32, seed=3)
    close(
        triton_rows.gated_rms_norm(o, z, scale, eps=1e-6),
        norm.gated_rms_norm(o, z, scale, eps=1e-6),
    )


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 1), (3, 0), (0, 2)])
def test_rotary(heads: int, kv_heads: int) -> None:
    x = normal(7, heads * 64 + kv_heads * 32 + 5)
    angle = normal(50, 6)
    positions = torch.randint(0, 50, (3, 7), dtype=torch.int32)
    axis = torch.tensor([0, 1, 2, 0, 1, 0], dtype=torch.int32)
    arguments = (x, normal(32), normal(32, seed=1), angle.cos(), angle.sin(), positions, axis)
    found = triton_rows.qk_norm_rope(*arguments, num_heads=heads, num_kv_heads=kv_heads, eps=1e-6)
    expected = rotary.qk_norm_rope(*arguments, num_heads=heads, num_kv_heads=kv_heads, eps=1e-6)
    for a, b in zip(found, expected, strict=True):
        if b.numel():
            close(a, b)


def attention_of(
    made: list[np.ndarray], heads: int, kv_heads: int, *, padded: bool = False
) -> tuple[Tensor, Tensor]:
    tables, rows = tables_of(made, padded=padded)
    halves, _ = tables_of(made, padded=padded, height=HEIGHT // 2)
    size = len(tables.token_ids_R)
    projected = normal(size, heads * 64 + 2 * kv_heads * 32)
    q, k = normal(size, heads, 32, seed=1), normal(size, kv_heads, 32, seed=2)
    v = projected[:, heads * 64 + kv_heads * 32 :].unflatten(1, (kv_heads, 32))
    gate = projected[:, : heads * 64].unflatten(1, (heads, 64))[..., 32:]
    tiles = tables.tiles
    found = triton_attention.tree_attention(
        q, k, v, gate, tiles.query_M, tiles.count_M, tiles.position_M, tiles.chunk_M,
        tiles.place_Q, tables.chunk_rows_CT, tables.path_chunks_CW, height=HEIGHT, scale=0.2,
    )  # fmt: skip
    expected = attention.tree_attention(q, k, v, gate, halves, halves.tiles, scale=0.2)
    return found[:rows], expected[:rows]


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 1), (6, 2), (5, 1)])
def test_attention(heads: int, kv_heads: int) -> None:
    close(*attention_of(prompts(0), heads, kv_heads))
    close(*attention_of(prompts(1), heads, kv_heads, padded=True))


@pytest.mark.parametrize("parent", [256, 300, 321])
def test_attention_of_siblings_that_share_tiles(parent: int) -> None:
    rng = np.random.default_rng(parent)
    state = rng.integers(0, 90, parent)
    tails = [rng.integers(0, 90, n) for n in (3, 5, 20, 61, 70, 1, 2, 40, 33, 5)]
    made = [np.concatenate([state, tail]).astype(np.int32) for tail in tails]
    forest = plan(made)
    assert row_tiles(forest, HEIGHT).shape[1] < forest.num_chunks
    close(*attention_of(made, 4, 2))
    close(*attention_of(made, 5, 1, padded=True))


def in_order(a: np.ndarray, b: np.ndarray, **_: Any) -> np.ndarray:
    """a b, each sum from its first term on: numpy's own depends on a row's place."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    return total


@pytest.mark.parametrize("parent", [256, 300])
def test_siblings_that_share_tiles_have_the_bits_of_each_alone(
    parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(parent)
    state = rng.integers(0, 90, parent)
    made = [
        np.concatenate([state, rng.integers(0, 90, n)]).astype(np.int32) for n in (1, 5, 40, 3, 22)
    ]
    queries, keys, values = (normal(90, n, 32, seed=seed) for seed, n in enumerate((4, 2, 2)))
    monkeypatch.setattr(np, "matmul", in_order)

    def ends(company: list[np.ndarray]) -> Tensor:
        forest = plan(company)
        tables, _ = tables_of(company)
        ids = tables.token_ids_R.long()
        o_RND = attention_on(tables, queries[ids], keys[ids], values[ids])
        return o_RND[forest.readout_rows[forest.prompt_readout]]

    together = ends(made)
    for prompt, o_ND in zip(made, together, strict=True):
        assert ends([prompt])[0].equal(o_ND)


def delta_of(
    tables: Tables, x: Tensor, sizes: tuple[int, int, int, int], state: Tensor | None = None
) -> Tensor:
    H, V, K, D = sizes
    channels = 2 * H * K + V * D
    if state is None:
        state = torch.full((tables.num_states, V, K, D), float("nan"))
    chunk_rows_CT = tables.chunk_rows_CT[: len(tables.chunk_len_C)]
    return triton_delta.gated_delta(
        x, normal(channels, 4, seed=4, scale=0.5), normal(V, seed=5), normal(V, seed=6) - 2,
        tables.ancestors_R3, chunk_rows_CT, tables.chunk_first_C, tables.chunk_len_C,
        tables.chunk_state_out_C, tables.run_first_N, tables.run_count_N, tables.run_state_in_N,
        tables.level_start_L, state, level_runs=tables.level_runs, num_key_heads=H,
        num_value_heads=V, key_dim=K, value_dim=D,
    )  # fmt: skip


@pytest.mark.parametrize("sizes", [(1, 2, 32, 16), (2, 2, 16, 64), (1, 3, 16, 32)])
def test_delta(sizes: tuple[int, int, int, int]) -> None:
    H, V, K, D = sizes
    tables, rows = tables_of(prompts(0))
    x = normal(len(tables.token_ids_R), 2 * H * K + 2 * V * D + 2 * V)
    expected = delta.gated_delta(
        x, normal(2 * H * K + V * D, 4, seed=4, scale=0.5), normal(V, seed=5),
        normal(V, seed=6) - 2, tables, num_key_heads=H, num_value_heads=V, key_dim=K, value_dim=D,
    )  # fmt: skip
    close(delta_of(tables, x, sizes)[:rows], expected[:rows])


@pytest.mark.parametrize(
    ("sizes", "refused"),
    [
        ((1, 1, 64, 48), "value_dim is 48"),
        ((1, 1, 48, 64), "key_dim is 48"),
        ((1, 1, 64, 8), "value_dim is 8"),
        ((2, 3, 16, 16), "num_value_heads is 3; kernels take multiples of num_key_heads"),
    ],
)
def test_delta_refuses_what_its_slices_and_groups_would_leave_out(
    sizes: tuple[int, int, int, int], refused: str
) -> None:
    H, V, K, D = sizes
    tables, _ = tables_of([np.ones(3, np.int32)])
    with pytest.raises(Refused, match=refused):
        delta_of(tables, normal(3, 2 * H * K + V * D + 2 * V), sizes)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "refused"),
    [(2, 1, 24, "head_dim is 24"), (2, 1, 8, "head_dim is 8"), (3, 2, 16, "num_heads is 3")],
)
def test_attention_refuses_what_its_tiles_would_leave_out(
    heads: int, kv_heads: int, size: int, refused: str
) -> None:
    tables, _ = tables_of([np.ones(3, np.int32)])
    with pytest.raises(Refused, match=refused):
        attention_on(tables, normal(3, heads, size), *normal(2, 3, kv_heads, size).unbind())


def test_delta_of_a_branch_is_that_of_its_prompt_alone_to_the_bit() -> None:
    sizes = (1, 2, 32, 16)
    made = prompts(2)
    embed = normal(90, 2 * 32 + 2 * 2 * 16 + 2 * 2)
    together, _ = tables_of(made, padded=True)
    shared = delta_of(together, embed[together.token_ids_R.long()], sizes)
    forest = plan(made)
    for prompt, q in zip(made, forest.prompt_readout, strict=True):
        alone, _ = tables_of([prompt])
        expected = delta_of(alone, embed[alone.token_ids_R.long()], sizes)[-1]
        assert torch.equal(shared[forest.readout_rows[q]], expected)


@pytest.mark.parametrize("known", [True, False])
def test_a_program_that_takes_several_runs_has_the_same_bits(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a level has more of them than programs, and where only the device counts them."""
    sizes = (1, 2, 16, 32)
    tables, rows = tables_of(prompts(2), padded=True)
    x = normal(len(tables.token_ids_R), 2 * 16 + 2 * 32 + 2 * 2)
    expected = delta_of(tables, x, sizes)[:rows]
    monkeypatch.setattr(triton_scan, "MOST_PROGRAMS", 3)
    monkeypatch.setattr(triton_scan, "FEW_PROGRAMS", 2)
    if not known:
        tables = replace(tables, level_runs=(0,) * len(tables.level_runs))
    assert torch.equal(delta_of(tables, x, sizes)[:rows], expected)


def test_on_a_kept_prefix_both_mixers_have_the_bits_of_the_whole_prompts() -> None:
    """Keys and values behind the rows, a start state in its slot, three inputs for the conv."""
    H, V, K, D = sizes = (1, 2, 32, 16)
    rng = np.random.default_rng(3)
    state = rng.integers(0, 90, 128).astype(np.int32)
    made = [
        np.concatenate([state, rng.integers(0, 90, 30)[:cut], rng.integers(0, 90, n)])
        for cut, n in ((0, 2), (30, 70), (30, 3))
    ]
    made = [prompt.astype(np.int32) for prompt in made]
    embed = normal(90, 2 * H * K + 2 * V * D + 2 * V)
    keys, values, queries = normal(90, 1, 32, seed=1), normal(90, 1, 32, seed=2), normal(90, 2, 32)

    cold, (cutting,) = cut(plan(made), [(0, 128)])
    tables = to_device(layout(cold, height=HEIGHT), CPU)
    slots = torch.full((tables.num_states, V, K, D), float("nan"))
    ids = tables.token_ids_R.long()
    delta_cold = delta_of(tables, embed[ids], sizes, slots)
    attention_cold = attention_on(tables, queries[ids], keys[ids], values[ids])
    kept = slots[cutting.slot]

    warm = graft(made, scopes=[0] * 3, trunks=[0] * 3, trunk_tokens=[128])
    assert warm.num_rows == cold.num_rows - 128
    tables = to_device(layout(warm, height=HEIGHT), CPU)
    slots = torch.full((tables.num_states, V, K, D), float("nan"))
    slots[warm.num_states - 1] = kept
    ids = tables.token_ids_R.long()
    trunk = torch.from_numpy(state).long()
    delta_warm = delta_of(tables, torch.cat([embed[ids], embed[trunk[-3:]]]), sizes, slots)
    joined = torch.cat([ids, trunk])
    attention_warm = attention_on(tables, queries[ids], keys[joined], values[joined])

    order = [int(cold.readout_rows[q]) for q in cold.prompt_readout]
    found = [int(warm.readout_rows[q]) for q in warm.prompt_readout]
    assert torch.equal(delta_warm[found], delta_cold[order])
    assert torch.equal(attention_warm[found], attention_cold[order])
    assert bool(delta_warm[: warm.num_rows].isfinite().all())


def attention_on(tables: Tables, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    tiles = tables.tiles
    return triton_attention.tree_attention(
        q, k, v, torch.zeros_like(q), tiles.query_M, tiles.count_M, tiles.position_M,
        tiles.chunk_M, tiles.place_Q, tables.chunk_rows_CT, tables.path_chunks_CW, height=HEIGHT,
        scale=0.2,
    )  # fmt: skip


def test_equal_keys_do_not_make_the_inverse_explode() -> None:
    sizes = (1, 1, 16, 16)
    tables, rows = tables_of([np.ones(64, np.int32)])
    x = normal(1, 2 * 16 + 2 * 16 + 2).repeat(len(tables.token_ids_R), 1)
    found = delta_of(tables, x, sizes)[:rows]
    assert bool(found.isfinite().all()) and float(found.abs().max()) < 100
