"""Tree attention against a dense softmax over each row's path, in FP64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from adjudge.ops.attention import tree_attention
from adjudge.ops.tables import Tables
from tests.cpu.test_ops_delta import path_to
from tests.small_models import Ids, distance, tables_of, token_ids

N, K, D = 6, 2, 16
SCALE = D**-0.5


@dataclass(frozen=True)
class Inputs:
    """projected: per query head (query | gate), then keys, then values, as the model has them."""

    projected_RX: Tensor

    @property
    def q_RND(self) -> Tensor:
        return self.projected_RX[:, : 2 * N * D].unflatten(1, (N, 2 * D))[..., :D].contiguous()

    @property
    def gate_RND(self) -> Tensor:
        return self.projected_RX[:, : 2 * N * D].unflatten(1, (N, 2 * D))[..., D:]

    @property
    def k_RKD(self) -> Tensor:
        return self.projected_RX[:, 2 * N * D :][:, : K * D].unflatten(1, (K, D)).contiguous()

    @property
    def v_RKD(self) -> Tensor:
        return self.projected_RX[:, 2 * N * D + K * D :].unflatten(1, (K, D))

    def run(self, tables: Tables) -> Tensor:
        return tree_attention(
            self.q_RND, self.k_RKD, self.v_RKD, self.gate_RND, tables, tables.tiles, scale=SCALE
        )

    def run_readout(self, tables: Tables) -> Tensor:
        rows = tables.readout_rows_Q
        return tree_attention(
            self.q_RND[rows], self.k_RKD, self.v_RKD, self.gate_RND[rows], tables,
            tables.readout_tiles, scale=SCALE,
        )  # fmt: skip


def inputs_of(tables: Tables, dtype: torch.dtype = torch.float32) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    rows = len(tables.token_ids_R)
    projected = torch.randn(rows, 2 * N * D + 2 * K * D, generator=generator)
    return Inputs(projected.mul(1.5).to(dtype))


def dense(inputs: Inputs, path: list[int]) -> Tensor:
    """[N, D] of the path's last row, rounded where the contract says."""
    dtype = inputs.projected_RX.dtype
    keys, values = (
        x[path].double().repeat_interleave(N // K, dim=1) for x in (inputs.k_RKD, inputs.v_RKD)
    )
    scores = torch.einsum("nd,lnd->nl", inputs.q_RND[path[-1]].double(), keys) * SCALE
    o_ND = torch.einsum("nl,lnd->nd", scores.softmax(-1), values).to(dtype)
    return o_ND * inputs.gate_RND[path[-1]].float().sigmoid().to(dtype)


def forest() -> list[Ids]:
    trunk = token_ids(0, 150)
    cuts = (1, 31, 32, 33, 63, 64, 65, 100, 128, 149)
    return [trunk, *(np.concatenate([trunk[:cut], token_ids(cut, 50)]) for cut in cuts)]


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)], ids=["fp32", "bf16"]
)
def test_equals_dense_attention_over_each_path(dtype: torch.dtype, most: float) -> None:
    tables = tables_of(forest())
    inputs = inputs_of(tables, dtype)
    found = inputs.run(tables)
    expected = torch.stack([dense(inputs, path_to(tables, row)) for row in range(len(found))])
    assert distance(found, expected) < most
    assert distance(inputs.run_readout(tables), expected[tables.readout_rows_Q]) < most


def test_rows_of_no_tile_are_never_read() -> None:
    tables = tables_of(forest())
    clean = inputs_of(tables)
    rows = len(clean.projected_RX)
    poisoned = Inputs(functional.pad(clean.projected_RX, (0, 0, 0, 40), value=float("nan")))
    padded = replace(
        tables, token_ids_R=functional.pad(tables.token_ids_R, (0, 40)),
    )  # fmt: skip
    assert poisoned.run(padded)[:rows].equal(clean.run(tables))
    assert poisoned.run_readout(padded).equal(clean.run_readout(tables))


def test_large_scores_do_not_overflow() -> None:
    tables = tables_of(forest())
    inputs = Inputs(inputs_of(tables).projected_RX * 100.0)
    assert inputs.run(tables).isfinite().all()
