"""Matrix products of a CPU by oneDNN: weights in its own layout, and FP32 where it keeps FP32.

torch gives BF16 products to oneDNN and FP32 products to MKL, which runs at half speed on CPUs
that are not Intel's. It hands FP32 products to oneDNN only when lower precision is allowed; on a
CPU without BF16 matrix tiles oneDNN makes no use of that. `faithful` tests it on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

PACKED_FOR = 512
"""Rows that the layout of a packed weight is chosen for; products of other numbers take it too."""

SHAPES = ((1, 512, 512, 512), (4, 64, 128, 128), (16, 64, 128, 32), (16, 32, 32, 128))
"""batch, M, K, N of the products tried: the linear layers' and the delta rule's kinds."""

MOST_ERROR = 2e-6
"""Relative L2 error of a product of normal values; BF16 operands would give 2e-3."""


def onednn_runs(dtype: torch.dtype) -> bool:
    """Whether this CPU has oneDNN kernels for the dtype, float32 or bfloat16."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed(weight_NK: Tensor) -> Tensor:
    """A weight in the layout that oneDNN computes with, or itself where oneDNN does not run it.

    From a plain weight every product makes that layout first. Only `product` reads a packed one,
    and it has no slices.
    """
    if not weight_NK.is_cpu or not onednn_runs(weight_NK.dtype):
        return weight_NK
    made_NK: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_NK, PACKED_FOR)
    return made_NK


def product(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    """[R, N] of x · weightᵀ; weight_NK: plain or packed."""
    if not weight_NK.is_mkldnn:
        return functional.linear(x_RK, weight_NK)
    out_RN: Tensor = torch.ops.mkldnn._linear_pointwise(x_RK, weight_NK, None, "none", [], "")
    return out_RN


@contextmanager
def fast_products() -> Iterator[None]:
    """Inside, FP32 products run by oneDNN if it is faithful; the process' setting is restored."""
    if not faithful():
        yield
        return
    with _lower_precision_allowed():
        yield


@cache
def faithful() -> bool:
    """Whether oneDNN multiplies FP32 values in FP32 here, although it may do otherwise."""
    if not torch.backends.mkldnn.is_available() or torch.cpu._is_amx_tile_supported():
        return False
    generator = torch.Generator().manual_seed(0)
    with _lower_precision_allowed():
        for batch, M, K, N in SHAPES:
            a = torch.randn(batch, M, K, generator=generator)
            b = torch.randn(batch, K, N, generator=generator)
            exact = torch.bmm(a.double(), b.double())
            for product in (torch.bmm(a, b), torch.baddbmm(torch.zeros(batch, M, N), a, b)):
                if float((product - exact).norm() / exact.norm()) > MOST_ERROR:
                    return False
    return True


@contextmanager
def _lower_precision_allowed() -> Iterator[None]:
    library: Any = torch.backends.mkldnn
    before = library.matmul.fp32_precision
    library.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        library.matmul.fp32_precision = before
