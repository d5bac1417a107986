"""Matrix products whose rows do not depend on how many rows there are, and low-rank deltas.

Legend: R rows, K inputs, N outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from adjudge.ops.cpu_products import product

ROW_BLOCKS = (512, 256, 128, 64, 32)
"""Row counts that a product runs with on a CPU, descending; see `agreeing_blocks`."""


FEWEST_ROWS = 64
"""Least rows of a library's product on a GPU: for 16 to 56 it has kernels that take ten times as
long (2B and 9B shapes on an H200), and 64 rows take no longer than 32 should."""


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """How products run on one device, so that their rows stand alone.

    blocks: row counts of a product on a CPU, descending; see `agreeing_blocks`. own: shapes
    (N, K) of weights whose library product does not keep rows alone on this GPU, and which run
    by ops.triton_products in its place; apart: shapes whose library product may not add to rows by
    itself, since how often it rounds then depends on the number of rows.
    """

    blocks: tuple[int, ...] = ROW_BLOCKS
    own: frozenset[tuple[int, ...]] = frozenset()
    apart: frozenset[tuple[int, ...]] = frozenset()


AS_IT_IS = LinearPlan()
"""The plan of a device of which nothing is known yet."""


def linear(x_RK: Tensor, weight_NK: Tensor, plan: LinearPlan = AS_IT_IS) -> Tensor:
    """[R, N] of x · weightᵀ, accumulated in FP32 and rounded once. Any R ≥ 0.

    weight_NK: plain, or on a CPU `packed`. There rows run in blocks of the plan's sizes, the last
    one padded: a library picks its kernel by the number of rows, and these sizes were seen to
    agree. On a GPU fewer than FEWEST_ROWS rows are padded: one row takes a matrix-vector kernel,
    slower and with other sums.
    """
    R, blocks = x_RK.shape[0], plan.blocks
    if tuple(weight_NK.shape) in plan.own:
        from adjudge.ops import triton_products

        return triton_products.linear(x_RK, weight_NK)
    if x_RK.is_cuda:
        if R >= FEWEST_ROWS:
            return functional.linear(x_RK, weight_NK)
        padded_RK = functional.pad(x_RK, (0, 0, 0, FEWEST_ROWS - R))
        return functional.linear(padded_RK, weight_NK)[:R]
    if R in blocks:
        return product(x_RK, weight_NK)
    out_RN = x_RK.new_empty(R, weight_NK.shape[0])
    start = 0
    while start < R:
        left = R - start
        size = next((block for block in blocks if block <= left), blocks[-1])
        block = x_RK[start : start + size]
        if left < size:
            block = functional.pad(block, (0, 0, 0, size - left))
        out_RN[start : start + size] = product(block, weight_NK)[:left]
        start += size
    return out_RN


def add_linear(y_RN: Tensor, x_RK: Tensor, weight_NK: Tensor, plan: LinearPlan = AS_IT_IS) -> None:
    """y ← y + x · weightᵀ in place, the product rounded and then the sum. y_RN: contiguous.

    On a GPU the library adds as it stores, unless the plan says otherwise; it may then round once.
    """
    shape = tuple(weight_NK.shape)
    if not x_RK.is_cuda or shape in plan.own or shape in plan.apart:
        y_RN.add_(linear(x_RK, weight_NK, plan))
    elif (missing := FEWEST_ROWS - x_RK.shape[0]) <= 0:
        y_RN.addmm_(x_RK, weight_NK.t())
    else:
        x_RK, padded_RN = (functional.pad(rows, (0, 0, 0, missing)) for rows in (x_RK, y_RN))
        y_RN.copy_(padded_RN.addmm_(x_RK, weight_NK.t())[: len(y_RN)])


def agreeing_blocks(weights_NK: list[Tensor]) -> tuple[int, ...]:
    """The sizes of ROW_BLOCKS with which this machine gives every row the same bits.

    weights_NK: one weight of each shape that will be used. A size stays if its rows, at each
    place of a block, equal those of the largest block for every weight. Deterministic inputs.
    """
    largest = ROW_BLOCKS[0]
    agreeing = list(ROW_BLOCKS)
    generator = torch.Generator().manual_seed(0)
    for weight_NK in weights_NK:
        x_RK = torch.randn(largest, weight_NK.shape[1], generator=generator).to(weight_NK.dtype)
        whole_RN = product(x_RK, weight_NK)
        agreeing = [
            size
            for size in agreeing
            if all(
                torch.equal(product(part, weight_NK), expected)
                for part, expected in zip(x_RK.split(size), whole_RN.split(size), strict=True)
            )
        ]
    return tuple(agreeing)


def add_lora(
    y_RN: Tensor,
    x_RK: Tensor,
    a_LK: Tensor,
    b_NL: Tensor,
    *,
    scale: float,
    plan: LinearPlan = AS_IT_IS,
) -> None:
    """y ← round(y + scale · (x · aᵀ) · bᵀ) in place; the delta is FP32 throughout.

    y_RN: a product's result, or the slice of a fused one that this delta belongs to;
    a_LK, b_NL: float32, L the rank. On a GPU both products are ops.triton_products'.
    """
    if x_RK.is_cuda:
        from adjudge.ops import triton_products

        triton_products.add_lora(y_RN, x_RK, a_LK, b_NL, scale=scale)
        return
    low_RL = linear(x_RK.float(), a_LK, plan)
    delta_RN = linear(low_RL, b_NL, plan)
    y_RN.copy_(delta_RN.mul_(scale).add_(y_RN))
