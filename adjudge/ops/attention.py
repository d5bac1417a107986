"""Grouped causal attention of a tree's rows over their paths, with the output gate.

Legend: R rows, Q queries, N query heads, K key heads, G query heads of one key head, D head
dimension, T slots of a tile, L keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adjudge.ops.stage import Stage
from adjudge.ops.tables import Tables, Tiles

SLOTS = 32
"""Queries of a tile on a CPU. Tiles start and end inside one aligned span of as many positions."""

BLOCK = 128
"""Rows gated at once."""

LONE_SLOTS = 8
"""Slots of a tile that holds one query; products of fewer rows take other kernels."""


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

    q_QND: contiguous; k_RKD: one row per unique token, contiguous, then any further rows that
    `chunk_rows` lists; v_RKD, gate_QND: views whose last axis is contiguous. tiles: `tables.tiles`
    (Q = R) or `tables.readout_tiles`. A query sees the keys of its path up to itself; query head n
    reads key head n // (N / K). Softmax in FP32. Queries of no tile are undefined.

    On a CPU a query at path position p always meets the same shapes: a slot of a tile of one
    height, and the keys of positions 0 … 32·⌈(p+1)/32⌉ − 1 at once.
    """
    if q_QND.is_cuda:
        from adjudge.ops import triton_attention

        return triton_attention.tree_attention(
            q_QND, k_RKD, v_RKD, gate_QND, tiles.query_M, tiles.count_M, tiles.position_M,
            tiles.chunk_M, tiles.place_Q, tables.chunk_rows_CT, tables.path_chunks_CW,
            height=tiles.height, scale=scale,
        )  # fmt: skip
    N, K, D = q_QND.shape[1], k_RKD.shape[1], q_QND.shape[2]
    alone = tiles.height == 1
    num_slots = LONE_SLOTS if alone else SLOTS
    hidden_TT = torch.full((SLOTS, SLOTS), float("-inf")).triu_(1)
    keys_KRD = k_RKD.transpose(0, 1).float().contiguous()
    values_KRD = v_RKD.transpose(0, 1).contiguous()
    queries_KGTD = torch.zeros(K, N // K, num_slots, D)
    out_QND = torch.zeros_like(q_QND)
    places = zip(
        tiles.query_M.tolist(), tiles.count_M.tolist(), tiles.position_M.tolist(),
        tiles.chunk_M.tolist(), strict=True,
    )  # fmt: skip
    for query, count, position, chunk in places:
        if not count:
            continue
        span, first = divmod(position, SLOTS)
        slots = slice(0, 1) if alone else slice(first, first + count)
        queries_KGTD[:, :, slots] = _by_head(q_QND[query : query + count], K)
        rows_L = _path(tables, chunk, SLOTS * (span + 1))
        o_KGTD = _attend(
            queries_KGTD,
            _take(keys_KRD, rows_L),
            _take(values_KRD, rows_L),
            hidden_TT[first] if alone else hidden_TT,
            scale,
        )
        out_QND[query : query + count] = o_KGTD[:, :, slots].permute(2, 0, 1, 3).flatten(1, 2)
    _gate(out_QND, gate_QND)
    return out_QND


def _by_head(q_TND: Tensor, num_kv_heads: int) -> Tensor:
    """[K, G, T, D], a view."""
    split_TKGD: Tensor = q_TND.unflatten(1, (num_kv_heads, -1))
    return split_TKGD.permute(1, 2, 0, 3)


def _path(tables: Tables, chunk: int, num_keys: int) -> Tensor:
    """[L] int64: rows of the path's first positions; places past its end hold any row."""
    width = tables.chunk_rows_CT.shape[1]
    chunks = tables.path_chunks_CW[chunk, : -(-num_keys // width)].long()
    return tables.chunk_rows_CT[chunks].flatten()[:num_keys].long().clamp_(min=0)


def _take(x_KRD: Tensor, rows_L: Tensor) -> Tensor:
    """[K, L, D]: a view where the rows follow each other."""
    first = int(rows_L[0])
    if torch.equal(rows_L, torch.arange(first, first + len(rows_L))):
        return x_KRD[:, first : first + len(rows_L)]
    return x_KRD.index_select(1, rows_L)


def _attend(q_KGTD: Tensor, k_KLD: Tensor, v_KLD: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """[K, G, T, D] in the dtype of v; `hidden` is added to the scores of the last keys."""
    K, G, T, D = q_KGTD.shape
    scores = torch.bmm(q_KGTD.view(K, G * T, D), k_KLD.transpose(1, 2)).mul_(scale)
    scores.view(K, G, T, -1)[..., -SLOTS:] += hidden
    weights = torch.softmax(scores, dim=-1).to(v_KLD.dtype)
    o_KGTD: Tensor = torch.bmm(weights, v_KLD).view(K, G, T, D)
    return o_KGTD


def _gate(out_QND: Tensor, gate_QND: Tensor) -> None:
    """out ← round(out · round(sigmoid(gate)))."""
    stage = Stage(min(BLOCK, len(out_QND)), out_QND[0].numel())
    for out, gate in zip(out_QND.split(BLOCK), gate_QND.split(BLOCK), strict=True):
        rows = stage.rows[: len(out)].view(out.shape)
        rows.copy_(gate)
        stage.sigmoid_()
        out.mul_(rows.to(out.dtype))
