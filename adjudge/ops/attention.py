"""Grouped causal attention of a tree's rows over their paths, with the output gate.

Legend: R rows, Q queries, N query heads, K key heads, D head dimension.
"""

from __future__ import annotations

from torch import Tensor

from adjudge.ops.tables import Tables, Tiles


def tree_attention(
    q_QND: Tensor,
    k_RKD: Tensor,
    v_RKD: Tensor,
    gate_QND: Tensor,
    tables: Tables,
    tiles: Tiles,
    *,
    scale: float,
) -> Tensor:
    """[Q, N, D] of round(round(softmax(scale · q·k) · v) · round(sigmoid(gate))).

    q_QND: contiguous; k_RKD: one row per unique token, contiguous; v_RKD, gate_QND: views whose
    last axis is contiguous. tiles: `tables.tiles` (Q = R) or `tables.readout_tiles`. A query sees
    the keys of its path up to itself; query head n reads key head n // (N / K). Softmax in FP32.
    Queries of no tile are undefined.
    """
    raise NotImplementedError
