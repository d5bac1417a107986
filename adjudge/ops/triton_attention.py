"""Tree attention in Triton: a tile of queries walks its path's key blocks in ascending order.

A tile holds new rows of one chunk, each with all query heads of one key head; a program takes
LANES of these (row, head) pairs, whichever row they begin and end in. Key blocks are the path's
chunks: always the same 64 logical positions, so the online softmax meets the same blocks in the
same order for a branch as for its prompt alone; a block that is masked for a whole row changes
nothing of that row (its weights are exactly 0, its rescaling exactly 1).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from adjudge.ops.launch import first_that_fits
from adjudge.ops.refusal import check_groups, check_sizes
from adjudge.ops.tables import CHUNK

CHOICES = ((128, 3), (64, 3), (64, 2), (64, 1))
"""(Lanes, key blocks in shared memory) of a program, the first that fits. A warp has 16 lanes in
all of them, so that the sums over keys, and their bits, are the same."""
LOG2_E = math.log2(math.e)


@triton.jit
def _block(
    q, highest, total, acc, k_ptr, v_ptr, rows_ptr, block, kv_head, v_stride, scale, visible_to,
    NUM_K: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """One key block of the online softmax, base 2. Only the tile's own chunk needs masks."""
    offset = tl.arange(0, BLOCK_N)
    column = tl.arange(0, D)
    row = tl.load(rows_ptr + block * BLOCK_N + offset).to(tl.int64)
    k_at = (row * NUM_K + kv_head)[:, None] * D + column[None, :]
    v_at = row[:, None] * v_stride + kv_head * D + column[None, :]
    if LAST:
        k = tl.load(k_ptr + k_at, mask=(row >= 0)[:, None], other=0.0)
        v = tl.load(v_ptr + v_at, mask=(row >= 0)[:, None], other=0.0)
    else:
        k = tl.load(k_ptr + k_at)
        v = tl.load(v_ptr + v_at)
    logits = tl.dot(q, tl.trans(k)) * scale
    if LAST:
        logits = tl.where(offset[None, :] <= visible_to[:, None], logits, float("-inf"))
    raised = tl.maximum(highest, tl.max(logits, 1))
    weights = tl.exp2(logits - raised[:, None])
    shrink = tl.exp2(highest - raised)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
    return raised, total, acc


@triton.jit(do_not_specialize=["path_stride"])
def _tree_attention(
    q_ptr, k_ptr, v_ptr, gate_ptr, out_ptr,
    tile_query_ptr, tile_count_ptr, tile_position_ptr, tile_chunk_ptr,
    chunk_rows_ptr, path_chunks_ptr, scale, v_stride, gate_stride, gate_step, path_stride,
    NUM_Q: tl.constexpr, NUM_K: tl.constexpr, D: tl.constexpr, LANES: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = NUM_Q // NUM_K
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // PARTS
    first = tl.program_id(0) % PARTS * LANES
    kv_head = tl.program_id(1)
    count = tl.load(tile_count_ptr + tile)
    if first >= count * GROUP:
        return
    lane = first + tl.arange(0, LANES)
    index = lane // GROUP
    member = lane % GROUP
    valid = index < count
    query = tl.load(tile_query_ptr + tile).to(tl.int64) + index
    head = kv_head * GROUP + member
    position = tl.load(tile_position_ptr + tile)
    column = tl.arange(0, D)
    at = (query * NUM_Q + head)[:, None] * D + column[None, :]
    q = tl.load(q_ptr + at, mask=valid[:, None], other=0.0)

    highest = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    acc = tl.zeros([LANES, D], tl.float32)
    visible_to = position % BLOCK_N + index
    chunk = tl.load(tile_chunk_ptr + tile).to(tl.int64)
    path = path_chunks_ptr + chunk * path_stride
    for window in range(0, position // BLOCK_N):
        block = tl.load(path + window).to(tl.int64)
        highest, total, acc = _block(
            q, highest, total, acc, k_ptr, v_ptr, chunk_rows_ptr, block, kv_head, v_stride, scale,
            visible_to, NUM_K, D, BLOCK_N, False,
        )  # fmt: skip
    highest, total, acc = _block(
        q, highest, total, acc, k_ptr, v_ptr, chunk_rows_ptr, chunk, kv_head, v_stride, scale,
        visible_to, NUM_K, D, BLOCK_N, True,
    )  # fmt: skip

    kind = out_ptr.dtype.element_ty
    out = (acc / total[:, None]).to(kind).to(tl.float32)
    gate_at = query[:, None] * gate_stride + head[:, None] * gate_step + column[None, :]
    gate = tl.load(gate_ptr + gate_at, mask=valid[:, None], other=0.0).to(tl.float32)
    out = out * (1.0 / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out_ptr + at, out.to(kind), mask=valid[:, None])


def tree_attention(
    q_QND: Tensor, k_RKD: Tensor, v_RKD: Tensor, gate_QND: Tensor,
    query_M: Tensor, count_M: Tensor, position_M: Tensor, chunk_M: Tensor,
    chunk_rows_CT: Tensor, path_chunks_CW: Tensor, *, height: int, scale: float,
) -> Tensor:  # fmt: skip
    """See attention.tree_attention; a tile has at most `height` queries. The head dimension is a
    power of two of at least 16, the query heads are a multiple of the key heads; raises Refused
    for others.
    """
    num_heads, head_dim = q_QND.shape[1:]
    num_kv_heads = k_RKD.shape[1]
    check_sizes(head_dim=head_dim)
    check_groups(num_heads=num_heads, num_kv_heads=num_kv_heads)
    pairs = height * (num_heads // num_kv_heads)
    out_QND = torch.empty_like(q_QND)

    def attend(choice: tuple[int, int]) -> None:
        lanes, stages = choice
        parts = triton.cdiv(pairs, lanes)
        _tree_attention[(len(query_M) * parts, num_kv_heads)](
            q_QND, k_RKD, v_RKD, gate_QND, out_QND, query_M, count_M, position_M, chunk_M,
            chunk_rows_CT, path_chunks_CW, scale * LOG2_E, v_RKD.stride(0), gate_QND.stride(0),
            gate_QND.stride(1), path_chunks_CW.stride(0), num_heads, num_kv_heads, head_dim, lanes,
            parts, CHUNK, num_warps=lanes // 16, num_stages=stages,
        )  # fmt: skip

    first_that_fits(("attention", head_dim), q_QND, CHOICES, attend)
    return out_QND
