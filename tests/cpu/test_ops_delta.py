"""Convolution and gated delta rule over a tree, against a recurrence in FP64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from adjudge.ops import conv
from adjudge.ops.delta import gated_delta
from adjudge.ops.delta_tiles import unit_lower_inverse
from adjudge.ops.scan import TILE, Span
from adjudge.ops.tables import Tables
from tests.small_models import Ids, distance, tables_of, token_ids


@dataclass(frozen=True)
class Sizes:
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def width(self) -> int:
        return self.channels + self.value_heads * self.value_dim + 2 * self.value_heads


SIZES = [Sizes(2, 2, 16, 16), Sizes(2, 4, 32, 16), Sizes(1, 3, 16, 32), Sizes(2, 4, 24, 40)]


@dataclass(frozen=True)
class Inputs:
    x_RX: Tensor
    conv_C4: Tensor
    A_log_V: Tensor
    dt_bias_V: Tensor
    sizes: Sizes

    def run(self, tables: Tables) -> Tensor:
        return gated_delta(
            self.x_RX,
            self.conv_C4,
            self.A_log_V,
            self.dt_bias_V,
            tables,
            num_key_heads=self.sizes.key_heads,
            num_value_heads=self.sizes.value_heads,
            key_dim=self.sizes.key_dim,
            value_dim=self.sizes.value_dim,
        )


def inputs_of(tables: Tables, sizes: Sizes, dtype: torch.dtype = torch.float32) -> Inputs:
    """Inputs that depend on a row's token id and position only."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(1024, sizes.width, generator=generator)
    x_RX = table[tables.token_ids_R.long()] + 0.3 * table[tables.positions_3R[0].long() + 512]
    return Inputs(
        x_RX.to(dtype),
        (0.5 * torch.randn(sizes.channels, 4, generator=generator)).to(dtype),
        torch.rand(sizes.value_heads, generator=generator).mul(2.0).to(dtype),
        torch.randn(sizes.value_heads, generator=generator).sub(2.0).to(dtype),
        sizes,
    )


def recurrence(inputs: Inputs, path: list[int]) -> Tensor:
    """[tokens, V, D] of one path, token by token in FP64 from the same rounded inputs."""
    H, V, K, D = (
        inputs.sizes.key_heads, inputs.sizes.value_heads, inputs.sizes.key_dim,
        inputs.sizes.value_dim,
    )  # fmt: skip
    dtype = inputs.x_RX.dtype
    x = inputs.x_RX[path].double()
    C = inputs.sizes.channels
    before = functional.pad(x[:, :C], (0, 0, 3, 0))
    conv = sum(before[t : t + len(path)] * inputs.conv_C4[:, t].double() for t in range(4))
    qkv = functional.silu(torch.as_tensor(conv)).to(dtype).double()
    q, k, v = qkv.split([H * K, H * K, V * D], dim=1)
    q, k = (y.unflatten(1, (H, K)).repeat_interleave(V // H, dim=1) for y in (q, k))
    q, k = (y * (y.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for y in (q, k))
    b, a = x[:, C : C + 2 * V].split(V, dim=1)
    beta = b.float().sigmoid().to(dtype).double()
    decay = -inputs.A_log_V.double().exp() * functional.softplus(a + inputs.dt_bias_V.double())
    state = torch.zeros(V, K, D, dtype=torch.float64)
    outputs = []
    for t in range(len(path)):
        state = state * decay[t].exp()[:, None, None]
        rest = v[t].view(V, D) - torch.einsum("vkd,vk->vd", state, k[t])
        state = state + torch.einsum("vk,vd->vkd", k[t], rest * beta[t][:, None])
        outputs.append(torch.einsum("vkd,vk->vd", state, q[t]) * K**-0.5)
    return torch.stack(outputs)


def path_to(tables: Tables, row: int) -> list[int]:
    parent = tables.ancestors_R3[:, 0].tolist()
    path = []
    while row >= 0:
        path.append(row)
        row = parent[row]
    return path[::-1]


def tree(cuts: tuple[int, ...]) -> list[Ids]:
    """A trunk of 200 tokens, branches at the cuts, and a branch of each branch."""
    trunk = token_ids(0, 200)
    branches = [np.concatenate([trunk[:cut], token_ids(1 + cut, 90)]) for cut in cuts]
    twigs = [np.concatenate([b[: len(b) - 41], token_ids(900, 60)]) for b in branches]
    return [trunk, *branches, *twigs]


FORESTS = {
    "one token": [token_ids(0, 1)],
    "a tile": [token_ids(0, TILE)],
    "past a tile": [token_ids(0, TILE + 1)],
    "chunks": [token_ids(0, 193)],
    "many": [token_ids(seed, count) for seed, count in enumerate((3, 64, 65, 100, 31))],
    "tree": tree((1, 31, 32, 63, 64, 65, 100, 128, 130, 199)),
}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("forest", FORESTS.values(), ids=FORESTS)
def test_equals_the_recurrence_on_every_path(forest: list[Ids], sizes: Sizes) -> None:
    tables = tables_of(forest)
    inputs = inputs_of(tables, sizes)
    found = inputs.run(tables)
    for row in tables.readout_rows_Q.tolist():
        path = path_to(tables, row)
        assert distance(found[path], recurrence(inputs, path)) < 2e-6


def test_bf16_is_rounded_once_at_the_end() -> None:
    tables = tables_of(FORESTS["tree"])
    inputs = inputs_of(tables, SIZES[1], torch.bfloat16)
    found = inputs.run(tables)
    assert found.dtype == torch.bfloat16
    for row in tables.readout_rows_Q.tolist():
        path = path_to(tables, row)
        expected = recurrence(inputs, path).bfloat16()
        assert distance(found[path], expected) < 3e-4
        assert (found[path] == expected).float().mean() > 0.99


def test_equal_keys_and_full_updates_stay_finite_and_exact() -> None:
    """The worst case for the inverse: A is all ones below the diagonal."""
    tables = tables_of([token_ids(0, 150)])
    sizes = Sizes(2, 4, 32, 16)
    inputs = inputs_of(tables, sizes)
    keys = slice(sizes.key_heads * sizes.key_dim, 2 * sizes.key_heads * sizes.key_dim)
    inputs.x_RX[:, keys] = inputs.x_RX[0, keys]
    inputs.x_RX[:, -2 * sizes.value_heads : -sizes.value_heads] = 30.0
    inputs.x_RX[:, -sizes.value_heads :] = -30.0
    path = list(range(150))
    assert distance(inputs.run(tables), recurrence(inputs, path)) < 1e-5


def test_strong_decay_underflows_to_zero() -> None:
    tables = tables_of([token_ids(0, 100)])
    inputs = inputs_of(tables, SIZES[0])
    inputs = replace(inputs, A_log_V=torch.full_like(inputs.A_log_V, 6.0))
    found = inputs.run(tables)
    assert found.isfinite().all()
    assert distance(found, recurrence(inputs, list(range(100)))) < 2e-6


@pytest.mark.parametrize("sizes", [SIZES[1], SIZES[2]], ids=str)
def test_rows_of_no_chunk_are_never_read(sizes: Sizes) -> None:
    tables = tables_of(FORESTS["tree"])
    clean = inputs_of(tables, sizes)
    expected = clean.run(tables)
    rows = len(expected)
    poison = torch.full((50, sizes.width), float("nan"))
    padded = replace(
        tables, ancestors_R3=functional.pad(tables.ancestors_R3, (0, 0, 0, 50), value=-1)
    )
    found = replace(clean, x_RX=torch.cat([clean.x_RX, poison])).run(padded)
    assert found[:rows].equal(expected)


def test_a_strided_input_gives_the_same_bits() -> None:
    tables = tables_of(FORESTS["many"])
    inputs = inputs_of(tables, SIZES[1])
    wide = functional.pad(inputs.x_RX, (0, 37), value=float("nan"))[:, : inputs.sizes.width]
    assert replace(inputs, x_RX=wide).run(tables).equal(inputs.run(tables))


@pytest.mark.parametrize(
    ("dtype", "library", "most"),
    [
        (torch.float32, True, 1e-6),
        (torch.bfloat16, True, 3e-4),
        (torch.bfloat16, False, 3e-4),
    ],
    ids=["fp32", "bf16", "bf16 without oneDNN"],
)
def test_convolution_of_a_window_with_a_gap_and_a_fork(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, library: bool, most: float
) -> None:
    if not library:
        monkeypatch.setattr(conv, "onednn_runs", lambda dtype: False)
    x_RC = torch.randn(80, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    kernel_C114 = torch.randn(12, 1, 1, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    windows = [
        (Span(3, 0, TILE),),
        (Span(0, 10, 5), Span(5, 40, 20)),
    ]
    found = conv.causal_conv_silu(x_RC, kernel_C114, windows)
    for tile, spans in zip(found, windows, strict=True):
        window = torch.zeros(TILE + 3, 12, dtype=torch.float64)
        for span in spans:
            window[span.place : span.place + span.count] = x_RC[span.row : span.row + span.count]
        taps = kernel_C114[:, 0, 0].double()
        expected = sum(window[t : t + TILE] * taps[:, t] for t in range(4))
        rounded = functional.silu(torch.as_tensor(expected)).to(dtype)
        assert distance(tile, rounded) < most


def test_inverse_of_a_unit_lower_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    A_BTT = torch.rand(9, TILE, TILE, generator=generator).tril(-1)
    identity = torch.eye(TILE, dtype=torch.float64)
    expected = torch.linalg.inv(identity + A_BTT.double())
    above = torch.full((TILE, TILE), 7.0).triu()
    assert distance(unit_lower_inverse(A_BTT + above), expected) < 1e-5
