"""Causal convolution and gated delta rule over a tree of chunks.

Legend: R rows, X projected width, C convolution channels, H key heads, V value heads, K key
dimension, D value dimension, S state slots.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from adjudge.ops.delta_tiles import Inputs, advance, prepare
from adjudge.ops.scan import Group
from adjudge.ops.tables import Tables

MOST_TILES = 8
"""Tiles prepared at once; bounds the memory of a pass."""


def gated_delta(
    x_RX: Tensor,
    conv_weight_C4: Tensor,
    A_log_V: Tensor,
    dt_bias_V: Tensor,
    tables: Tables,
    *,
    num_key_heads: int,
    num_value_heads: int,
    key_dim: int,
    value_dim: int,
    state_SVKD: Tensor | None = None,
) -> Tensor:
    """[R, V, D], rounded to the inputs' dtype: what each row reads from its path's state.

    x_RX: rows of [q | k | v | b | a | …], last axis contiguous; what follows is not read, and of
    rows that no chunk lists neither are b and a.
    q, k, v = round(silu(Σ_t weight[c, 3 − t] · x[row t tokens before]));
    β = round(sigmoid(b)); g = −exp(A_log) · softplus(a + dt_bias);
    q and k over rsqrt(Σ² + 1e-6), q times key_dim^-½; key head of value head h: h // (V / H).
    Then, per path from the zero state: S ← S·exp(g); δ = β(v − Sᵀk); S ← S + k δᵀ; o = Sᵀq,
    computed in chunks of the path's 64-position grid, FP32. Rows of no chunk are undefined.
    state_SVKD: memory of the state slots, each in this op's own layout; a run may start from a slot
    that the caller filled with a state of an earlier call, and slots of `chunk_state_out` hold
    their states afterwards. Such a run belongs to a level above 0. Chunks of `chunk_rows` past
    those of `chunk_len` are not read.
    """
    H, V, K, D = num_key_heads, num_value_heads, key_dim, value_dim
    if x_RX.is_cuda:
        from adjudge.ops import triton_delta

        if state_SVKD is None:
            state_SVKD = x_RX.new_empty(tables.num_states, V, K, D, dtype=torch.float32)
        chunk_rows_CT = tables.chunk_rows_CT[: len(tables.chunk_len_C)]
        return triton_delta.gated_delta(
            x_RX, conv_weight_C4, A_log_V, dt_bias_V, tables.ancestors_R3, chunk_rows_CT,
            tables.chunk_first_C, tables.chunk_len_C, tables.chunk_state_out_C,
            tables.run_first_N, tables.run_count_N, tables.run_state_in_N,
            tables.level_start_L, state_SVKD,
            level_runs=tables.level_runs, num_key_heads=H, num_value_heads=V, key_dim=K,
            value_dim=D,
        )  # fmt: skip
    R, C = x_RX.shape[0], conv_weight_C4.shape[0]
    inputs = Inputs(
        x_RC=x_RX[:, :C],
        kernel_C114=conv_weight_C4.view(C, 1, 1, -1),
        beta_RV=_beta(x_RX[:, C : C + V]),
        decay_RV=_decay(x_RX[:, C + V : C + 2 * V], A_log_V, dt_bias_V),
        sizes=(H, V // H, K, D),
    )
    out_RVD = x_RX.new_zeros(R, V, D)
    if state_SVKD is None:
        state_SVKD = torch.empty(tables.num_states, V, K, D)
    for group in tables.groups:
        _run(group, inputs, state_SVKD, out_RVD)
    return out_RVD


def _beta(b_RV: Tensor) -> Tensor:
    """sigmoid(b), rounded, as float32 with a row of zeros at the end."""
    sigmoid = torch.exp(-b_RV.float()).add_(1.0).reciprocal_()
    return functional.pad(sigmoid.to(b_RV.dtype).float(), (0, 0, 0, 1))


def _decay(a_RV: Tensor, A_log_V: Tensor, dt_bias_V: Tensor) -> Tensor:
    """−exp(A_log) · softplus(a + dt_bias), with a row of zeros at the end.

    softplus x = max(x, 0) + log(1 + exp(−|x|)).
    """
    x = a_RV.float() + dt_bias_V.float()
    softplus = torch.log1p(torch.exp(-x.abs())).add_(x.clamp(min=0.0))
    return functional.pad(softplus.mul_(-A_log_V.float().exp()), (0, 0, 0, 1))


def _run(group: Group, inputs: Inputs, states: Tensor, out_RVD: Tensor) -> None:
    """Writes the rows that are new in the group's tiles, and the states that are kept."""
    state = None if group.state_in is None else states[group.state_in]
    first = last = 0
    for index, step in enumerate(group.steps):
        if step.stop > last:
            most = step.start + MOST_TILES
            first = step.start
            last = max(s.stop for s in group.steps[index:] if s is step or s.stop <= most)
            tiles = prepare(inputs, group.windows[first:last], group.rows_MT[first:last])
        o_MVTD, state = advance(
            tiles, step.start - first, step.stop - first, state, step.num_updated
        )
        for o_VTD, fresh in zip(o_MVTD, group.fresh[step.start : step.stop], strict=True):
            if fresh.count:
                o_TVD = o_VTD[:, fresh.place : fresh.place + fresh.count].transpose(0, 1)
                out_RVD[fresh.row : fresh.row + fresh.count] = o_TVD
        if state is not None:
            for run, slot in step.kept:
                states[slot] = state[run]
