"""FP32 blocks in tensor-core products as sums of two BF16 terms, for Triton kernels.

A small product takes as long as its start and its end. So the terms of one factor lie side by side
in one product of twice the width, and what comes of them is added afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _high(x):
    """x with its mantissa cut to that of a BF16: rounding it singly takes a slow unit."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _beside(a, b):
    """[a | b] of two blocks [M, N]."""
    return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), [a.shape[0], 2 * a.shape[1]])


@triton.jit
def split_terms(x, kind: tl.constexpr):
    """[high | low], both of `kind`, whose sum is x to 15 bits or more."""
    high = _high(x)
    return _beside(high.to(kind), (x - high).to(kind))


@triton.jit
def sum_terms(x):
    """a + b of [a | b]: what a product with `split_terms` comes to."""
    return tl.sum(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), 1)


@triton.jit
def product(a, b, kind: tl.constexpr):
    """a b of two FP32 blocks, each as two terms of `kind`."""
    high = _high(a)
    b = split_terms(b, kind)
    return sum_terms(tl.dot((a - high).to(kind), b, tl.dot(high.to(kind), b)))
