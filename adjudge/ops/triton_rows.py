"""Triton kernels on single rows: RMSNorm, gated RMSNorm, SiLU·mul, q/k norm + rotary.

A row (or one head of it) is reduced by one program in one fixed shape, so its bits never depend on
how many rows there are. Contracts and rounding points: the references beside this file.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(x_ptr, weight_ptr, out_ptr, eps, H: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * H
    column = tl.arange(0, BLOCK)
    mask = column < H
    x = tl.load(x_ptr + row + column, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / H + eps)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    normed = x * scale * (1.0 + weight)
    tl.store(out_ptr + row + column, normed.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm(x_RH: Tensor, weight_H: Tensor, *, eps: float) -> Tensor:
    """See norm.rms_norm. Contiguous inputs."""
    R, H = x_RH.shape
    out_RH = torch.empty_like(x_RH)
    _rms_norm[(R,)](x_RH, weight_H, out_RH, eps, H, triton.next_power_of_2(H), num_warps=8)
    return out_RH


@triton.jit
def _gated_rms_norm(
    o_ptr, z_ptr, weight_ptr, out_ptr, eps, num_heads, z_stride, V: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = (head < num_heads)[:, None]
    column = tl.arange(0, D)[None, :]
    at = head[:, None] * D + column
    o = tl.load(o_ptr + at, mask=mask, other=0.0).to(tl.float32)
    z_at = (head // V)[:, None] * z_stride + (head % V)[:, None] * D + column
    z = tl.load(z_ptr + z_at, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    scale = 1.0 / tl.sqrt_rn(tl.sum(o * o, 1) / D + eps)
    normed = (o * scale[:, None]).to(kind).to(tl.float32)
    weighted = (normed * weight).to(kind).to(tl.float32)
    gated = weighted * (z / (1.0 + tl.exp(-z)))
    tl.store(out_ptr + at, gated.to(kind), mask=mask)


def gated_rms_norm(o_RVD: Tensor, z_RX: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """See norm.gated_rms_norm. z_RX is a view whose last axis is contiguous."""
    R, V, D = o_RVD.shape
    out_RVD = torch.empty_like(o_RVD)
    rows = 16
    _gated_rms_norm[(triton.cdiv(R * V, rows),)](
        o_RVD, z_RX, weight_D, out_RVD, eps, R * V, z_RX.stride(0), V, D, rows, num_warps=4
    )
    return out_RVD


@triton.jit
def _silu_mul(x_ptr, out_ptr, I: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < I
    gate = tl.load(x_ptr + row * 2 * I + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * I + I + column, mask=mask, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out_ptr + row * I + column, (silu * up).to(kind), mask=mask)


def silu_mul(gate_up_R2I: Tensor) -> Tensor:
    """See activation.silu_mul. Contiguous input [R, gate | up]."""
    R, width = gate_up_R2I.shape
    out_RI = gate_up_R2I.new_empty(R, width // 2)
    block = 2048
    _silu_mul[(R, triton.cdiv(width // 2, block))](
        gate_up_R2I, out_RI, width // 2, block, num_warps=4
    )
    return out_RI


@triton.jit(do_not_specialize=["position_stride"])
def _qk_norm_rope(
    x_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, positions_ptr, axis_ptr, q_ptr, k_ptr,
    eps, x_stride, position_stride, NUM_Q: tl.constexpr, NUM_K: tl.constexpr, Q_STEP: tl.constexpr,
    D: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_q = head < NUM_Q
    mask = (head < NUM_Q + NUM_K)[:, None]
    start = tl.where(is_q, head * Q_STEP, NUM_Q * Q_STEP + (head - NUM_Q) * D)[:, None]
    column = tl.arange(0, D)[None, :]
    rotated = column < 2 * HALF
    partner = tl.where(rotated, tl.where(column < HALF, column + HALF, column - HALF), column)

    x = tl.load(x_ptr + row * x_stride + start + column, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(x_ptr + row * x_stride + start + partner, mask=mask, other=0.0).to(tl.float32)
    kind = q_ptr.dtype.element_ty
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / D + eps)
    choose_q = is_q[:, None]
    w_x = tl.where(choose_q, tl.load(q_weight_ptr + column), tl.load(k_weight_ptr + column))
    w_y = tl.where(choose_q, tl.load(q_weight_ptr + partner), tl.load(k_weight_ptr + partner))
    x = (x * scale[:, None] * (1.0 + w_x.to(tl.float32))).to(kind).to(tl.float32)
    y = (y * scale[:, None] * (1.0 + w_y.to(tl.float32))).to(kind).to(tl.float32)

    frequency = tl.where(rotated, column % HALF, 0)
    axis = tl.load(axis_ptr + frequency)
    position = tl.load(positions_ptr + axis.to(tl.int64) * position_stride + row)
    at = position.to(tl.int64) * HALF + frequency
    cos = tl.load(cos_ptr + at).to(tl.float32)
    sin = tl.load(sin_ptr + at).to(tl.float32)
    turned = (y * tl.where(column < HALF, -sin, sin)).to(kind).to(tl.float32)
    x = tl.where(rotated, (x * cos).to(kind).to(tl.float32) + turned, x).to(kind)
    q_at = (row * NUM_Q + head)[:, None] * D + column
    k_at = (row * NUM_K + head - NUM_Q)[:, None] * D + column
    tl.store(q_ptr + q_at, x, mask=mask & choose_q)
    tl.store(k_ptr + k_at, x, mask=mask & (head >= NUM_Q)[:, None])


def qk_norm_rope(
    x_RX: Tensor, q_norm_D: Tensor, k_norm_D: Tensor, cos_PF: Tensor, sin_PF: Tensor,
    positions_3R: Tensor, axis_F: Tensor, *, num_heads: int, num_kv_heads: int, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """See rotary.qk_norm_rope. x_RX: [R, num_heads · 2D | num_kv_heads · D | …]."""
    R, D = x_RX.shape[0], q_norm_D.shape[0]
    q_RND = x_RX.new_empty(R, num_heads, D)
    k_RKD = x_RX.new_empty(R, num_kv_heads, D)
    heads = 4
    _qk_norm_rope[(R, triton.cdiv(num_heads + num_kv_heads, heads))](
        x_RX, q_norm_D, k_norm_D, cos_PF, sin_PF, positions_3R, axis_F, q_RND, k_RKD,
        eps, x_RX.stride(0), positions_3R.stride(0), num_heads, num_kv_heads, 2 * D, D,
        cos_PF.shape[1], heads, num_warps=4,
    )  # fmt: skip
    return q_RND, k_RKD
