"""Matrix products in Triton whose bits are this file's: every row sums K in one order.

One tile shape for each dtype of the weight, walked along K in ascending blocks by one program; no
split of K, no atomics, no choice by the number of rows. So a row's bits are the same at any place
of a tile, in any number of rows, on any device that runs one tile like another. BF16 runs on
tensor cores, FP32 by IEEE multiply-adds; both accumulate in FP32 and round once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, outputs and inputs of a program's step; warps; steps whose loads are in flight."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


TILES = {
    torch.bfloat16: Tile(64, 128, 64, num_warps=4, num_stages=3),
    torch.float32: Tile(32, 64, 32, num_warps=4, num_stages=3),
}
"""By the weight's dtype. Within the shared memory of GPUs that have 100 KiB of it to a program."""


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    x_ptr, weight_ptr, out_ptr, num_rows, N, K, x_stride, weight_stride, out_stride, scale,
    ADD: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out = x · weightᵀ, or with ADD out + scale · x · weightᵀ. EVEN: K is whole blocks."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    in_rows, in_columns = (row < num_rows)[:, None], (column < N)[:, None]
    x_at = x_ptr + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    weight_at = weight_ptr + column.to(tl.int64)[:, None] * weight_stride + k[None, :]
    kind = weight_ptr.dtype.element_ty
    total = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN:
            x = tl.load(x_at, mask=in_rows, other=0.0)
            weight = tl.load(weight_at, mask=in_columns, other=0.0)
        else:
            inside = (start + k < K)[None, :]
            x = tl.load(x_at, mask=in_rows & inside, other=0.0)
            weight = tl.load(weight_at, mask=in_columns & inside, other=0.0)
        total = tl.dot(x.to(kind), tl.trans(weight), total, input_precision="ieee")
        x_at += BLOCK_K
        weight_at += BLOCK_K
    out_at = out_ptr + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    mask = in_rows & (column < N)[None, :]
    if ADD:
        total = tl.load(out_at, mask=mask, other=0.0).to(tl.float32) + scale * total
    tl.store(out_at, total.to(out_ptr.dtype.element_ty), mask=mask)


def _run(x_RK: Tensor, weight_NK: Tensor, out_RN: Tensor, scale: float | None) -> None:
    """Last axes contiguous, rows at any stride. scale: of what is added to `out_RN`, if it is."""
    (R, K), N = x_RK.shape, weight_NK.shape[0]
    tile = TILES[weight_NK.dtype]
    outputs = min(tile.outputs, max(16, triton.next_power_of_2(N)))
    _product[(triton.cdiv(R, tile.rows), triton.cdiv(N, outputs))](
        x_RK, weight_NK, out_RN, R, N, K, x_RK.stride(0), weight_NK.stride(0), out_RN.stride(0),
        0.0 if scale is None else scale, scale is not None, K % tile.inputs == 0, tile.rows,
        outputs, tile.inputs, num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def linear(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    """[R, N] of x · weightᵀ; see linear.linear. Any R, N, K; bfloat16 or float32, both alike."""
    out_RN = x_RK.new_empty(x_RK.shape[0], weight_NK.shape[0])
    _run(x_RK, weight_NK, out_RN, None)
    return out_RN


def add_lora(y_RN: Tensor, x_RK: Tensor, a_LK: Tensor, b_NL: Tensor, *, scale: float) -> None:
    """See linear.add_lora. x is widened as it is read; the addition is the product's epilogue."""
    low_RL = x_RK.new_empty(x_RK.shape[0], a_LK.shape[0], dtype=torch.float32)
    _run(x_RK, a_LK, low_RL, None)
    _run(low_RL, b_NL, y_RN, scale)
