"""RMSNorm, and RMSNorm with a SiLU gate.

Legend: R rows, H hidden, V value heads, D dimension of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adjudge.ops.stage import Stage

BLOCK = 128
"""Rows that a CPU takes at once."""


def rms_norm(x_RH: Tensor, weight_H: Tensor, *, eps: float) -> Tensor:
    """[R, H] of x · rsqrt(mean(x²) + eps) · (1 + weight), in FP32 and rounded once."""
    if x_RH.is_cuda:
        from adjudge.ops import triton_rows

        return triton_rows.rms_norm(x_RH, weight_H, eps=eps)
    return _unit(x_RH.float(), eps).mul_(weight_H.float() + 1.0).to(x_RH.dtype)


def gated_rms_norm(o_RVD: Tensor, z_RX: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """[R, V, D] of weight · round(o · rsqrt(mean(o²) + eps)) · silu(z), one mean for each head.

    z_RX: [R, V·D], last axis contiguous, rows perhaps strided. The normalised value, its product
    with the weight and the result are rounded to the inputs' dtype; silu is FP32.
    """
    if o_RVD.is_cuda:
        from adjudge.ops import triton_rows

        return triton_rows.gated_rms_norm(o_RVD, z_RX, weight_D, eps=eps)
    R, V, D = o_RVD.shape
    out_RVD = torch.empty_like(o_RVD)
    stage = Stage(min(BLOCK, R), V * D)
    for o, z, out in zip(o_RVD.split(BLOCK), z_RX.split(BLOCK), out_RVD.split(BLOCK), strict=True):
        gate = stage.rows[: len(z)]
        gate.copy_(z)
        stage.silu_()
        out.copy_(_unit(o.float(), eps)).mul_(weight_D)
        out.copy_(gate.view(o.shape).mul_(out))
    return out_RVD


def _unit(x: Tensor, eps: float) -> Tensor:
    """x, float32, over the root of its last axis' mean square."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
