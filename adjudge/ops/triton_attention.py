"""Tree attention in Triton: a tile of queries walks its path's key blocks in ascending order.

A tile holds new rows of one chunk, or of siblings, each with all query heads of one key head; a
program takes LANES of these (row, head) pairs, whichever row they begin and end in. It walks the
chunks before the tile's own, which are the same for all, and then those of its rows, each hidden
from the rows of the others. Key blocks are chunks: always the same 64 logical positions, so the
online softmax meets the same blocks in the same order for a branch as for its prompt alone; a block
that is masked for a whole row changes nothing of that row (its weights are exactly 0, its rescaling
exactly 1). All blocks are turns of one loop: with one after it the assembler lets every tensor-core
product wait for the one before.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from adjudge.ops.launch import first_that_fits, num_multiprocessors
from adjudge.ops.refusal import check_groups, check_sizes
from adjudge.ops.tables import CHUNK

WIDE = (128, 3)
NARROW = ((64, 3), (64, 2), (64, 1))
"""(Lanes, key blocks in shared memory) of a program; the first that fits. A warp has 16 lanes in
all of them, so that the sums over keys, and their bits, are the same. Narrow ones are faster while
all of them run at once, wide ones read keys half as often."""
AT_ONCE = 2
"""Narrow programs for every multiprocessor up to which they are taken; of a captured pass about
half do nothing."""
LOG2_E = math.log2(math.e)


@triton.jit(do_not_specialize=["path_stride"])
def _tree_attention(
    q_ptr, k_ptr, v_ptr, gate_ptr, out_ptr,
    tile_query_ptr, tile_count_ptr, tile_position_ptr, tile_chunk_ptr, place_ptr,
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
    first_query = tl.load(tile_query_ptr + tile)
    query = first_query.to(tl.int64) + index
    head = kv_head * GROUP + member
    place = tl.load(place_ptr + query, mask=valid, other=0)
    own = tl.load(place_ptr + first_query + first // GROUP) // BLOCK_N
    until = tl.minimum((first + LANES - 1) // GROUP, count - 1)
    num_own = tl.load(place_ptr + first_query + until) // BLOCK_N - own + 1
    column = tl.arange(0, D)
    at = (query * NUM_Q + head)[:, None] * D + column[None, :]
    q = tl.load(q_ptr + at, mask=valid[:, None], other=0.0)

    highest = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    acc = tl.zeros([LANES, D], tl.float32)
    offset = tl.arange(0, BLOCK_N)
    chunk = tl.load(tile_chunk_ptr + tile).to(tl.int64)
    path = path_chunks_ptr + chunk * path_stride
    spare = tl.load(chunk_rows_ptr + own.to(tl.int64) * BLOCK_N)  # for rows that a chunk lacks
    num_before = tl.load(tile_position_ptr + tile) // BLOCK_N
    for window in range(0, num_before + num_own):
        before = window < num_before
        block = tl.load(path + window, mask=before, other=0)
        block = tl.where(before, block, own + window - num_before)
        row = tl.load(chunk_rows_ptr + block.to(tl.int64) * BLOCK_N + offset)
        row = tl.where(row < 0, spare, row).to(tl.int64)
        k = tl.load(k_ptr + (row * NUM_K + kv_head)[:, None] * D + column[None, :])
        v = tl.load(v_ptr + row[:, None] * v_stride + kv_head * D + column[None, :])
        logits = tl.dot(q, tl.trans(k))
        visible_to = tl.where(place // BLOCK_N == block, place % BLOCK_N, -1)
        visible_to = tl.where(before, BLOCK_N, visible_to)
        logits = tl.where(offset[None, :] <= visible_to[:, None], logits, float("-inf"))
        raised = tl.maximum(highest, tl.max(logits, 1) * scale)
        weights = tl.exp2(logits * scale - raised[:, None])
        shrink = tl.exp2(highest - raised)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
        highest = raised

    kind = out_ptr.dtype.element_ty
    out = (acc / total[:, None]).to(kind).to(tl.float32)
    gate_at = query[:, None] * gate_stride + head[:, None] * gate_step + column[None, :]
    gate = tl.load(gate_ptr + gate_at, mask=valid[:, None], other=0.0).to(tl.float32)
    out = out * (1.0 / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out_ptr + at, out.to(kind), mask=valid[:, None])


def tree_attention(
    q_QND: Tensor, k_RKD: Tensor, v_RKD: Tensor, gate_QND: Tensor,
    query_M: Tensor, count_M: Tensor, position_M: Tensor, chunk_M: Tensor, place_Q: Tensor,
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
        parts = -(-pairs // lanes)
        _tree_attention[(len(query_M) * parts, num_kv_heads)](
            q_QND, k_RKD, v_RKD, gate_QND, out_QND, query_M, count_M, position_M, chunk_M, place_Q,
            chunk_rows_CT, path_chunks_CW, scale * LOG2_E, v_RKD.stride(0), gate_QND.stride(0),
            gate_QND.stride(1), path_chunks_CW.stride(0), num_heads, num_kv_heads, head_dim, lanes,
            parts, CHUNK, num_warps=lanes // 16, num_stages=stages,
        )  # fmt: skip

    def programs(choice: tuple[int, int]) -> int:
        return len(query_M) * -(-pairs // choice[0]) * num_kv_heads

    most = max(programs(WIDE), AT_ONCE * num_multiprocessors(q_QND))
    choices = NARROW if programs(NARROW[0]) <= most else (WIDE, *NARROW)
    first_that_fits(("attention", head_dim, choices), q_QND, choices, attend)
    return out_QND
