"""Matrix products of the loaded weights, each row at many row counts; where one must fall back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adjudge.ops.cpu_products import fast_products
from adjudge.ops.linear import LinearPlan, add_linear, add_lora, linear
from adjudge.self_check.check_row import CheckRow

if TYPE_CHECKING:
    from adjudge.executor import Executor
    from adjudge.models.projection import Delta


def products(executor: Executor, row_counts: Sequence[int]) -> Iterator[CheckRow]:
    """Each row of x · Wᵀ against the same row among the most rows.

    On a GPU shapes that fail are tried again as Triton products. Of those that hold, the ones that
    a pass adds to rows are added to rows as well; where that fails, their sums are made apart. The
    executor goes by it once all shapes are known.
    """
    used, added = executor.model.linear_plan, executor.model.added()
    for weight_NK in executor.model.products():
        shape = tuple(weight_NK.shape)
        different = _product_differs(weight_NK, used, row_counts)
        tried, after = False, ""
        if different and shape not in used.own and executor.device.is_cuda:
            tried, after = True, f"; the library's {_detail(different, row_counts)}"
            fallen = replace(used, own=used.own | {shape})
            different = _product_differs(weight_NK, fallen, row_counts)
            used = used if different else fallen
        if not different and shape in added:
            used, seen = _with_sum(weight_NK, used, row_counts)
            after += seen
        name = "Triton product" if tried or shape in used.own else "product"
        detail = _detail(different, row_counts) + after
        yield CheckRow(name, f"{list(shape)}", detail, not different)
    executor.use(used)


def deltas(executor: Executor, row_counts: Sequence[int]) -> Iterator[CheckRow]:
    """Each row of y + scale · (x · aᵀ) · bᵀ, for unmerged deltas, as `products` does."""
    for delta in executor.model.deltas():
        different = _delta_differs(executor, delta, row_counts)
        shape = f"{list(delta.a_LK.shape)}, {list(delta.b_NL.shape)}"
        yield CheckRow("delta", shape, _detail(different, row_counts), not different)


def _product_differs(weight_NK: Tensor, used: LinearPlan, row_counts: Sequence[int]) -> list[int]:
    x_RK = _normal(max(row_counts), weight_NK.shape[1], 0, like=weight_NK)
    return _differing(lambda count: linear(x_RK[:count].clone(), weight_NK, used), row_counts)


def _with_sum(
    weight_NK: Tensor, used: LinearPlan, row_counts: Sequence[int]
) -> tuple[LinearPlan, str]:
    """The plan that keeps sums with this product exact, and what there is to say of it."""
    shape = tuple(weight_NK.shape)
    if shape in used.own:
        return used, ""
    if shape in used.apart:
        return used, "; added apart"
    different = _sum_differs(weight_NK, used, row_counts)
    if not different:
        return used, ""
    apart = replace(used, apart=used.apart | {shape})
    return apart, f"; added apart, since the library's sum {_detail(different, row_counts)}"


def _sum_differs(weight_NK: Tensor, used: LinearPlan, row_counts: Sequence[int]) -> list[int]:
    most = max(row_counts)
    x_RK = _normal(most, weight_NK.shape[1], 0, like=weight_NK)
    y_RN = _normal(most, weight_NK.shape[0], 1, like=weight_NK)

    def added(count: int) -> Tensor:
        sum_RN = y_RN[:count].clone()
        add_linear(sum_RN, x_RK[:count].clone(), weight_NK, used)
        return sum_RN

    return _differing(added, row_counts)


def _delta_differs(executor: Executor, delta: Delta, row_counts: Sequence[int]) -> list[int]:
    embed_VH, most = executor.model.embed_VH, max(row_counts)
    x_RK = _normal(most, delta.a_LK.shape[1], 0, like=embed_VH)
    y_RN = _normal(most, delta.b_NL.shape[0], 1, like=embed_VH)

    def added(count: int) -> Tensor:
        sum_RN = y_RN[:count].clone()
        add_lora(
            sum_RN, x_RK[:count].clone(), delta.a_LK, delta.b_NL,
            scale=delta.scale, plan=executor.model.linear_plan,
        )  # fmt: skip
        return sum_RN

    return _differing(added, row_counts)


def _normal(num_rows: int, width: int, seed: int, *, like: Tensor) -> Tensor:
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(num_rows, width, generator=generator, device=like.device).to(like.dtype)


def _differing(way: Callable[[int], Tensor], row_counts: Sequence[int]) -> list[int]:
    """The row counts that give a row other bits than the most rows do."""
    with fast_products():
        most_RN = way(max(row_counts))
        return [count for count in row_counts if not torch.equal(way(count), most_RN[:count])]


def _detail(different: Sequence[int], row_counts: Sequence[int]) -> str:
    return f"differs at {list(different)} rows" if different else f"{len(row_counts)} row counts"
