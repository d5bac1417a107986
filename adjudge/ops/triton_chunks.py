"""All of the gated delta rule that needs no state, in Triton: every chunk on its own, in parallel.

After `triton_conv` has made q, k and v, `_prepare` makes the gates, the pair products and the
inverse of a chunk and value head, by the formulas of triton_delta. The inverse solves 16 × 16
diagonal blocks row by row in FP32 and joins them with products of two terms each; no power of A is
formed, so equal keys cannot make one explode.

Legend: R rows, C chunks, T positions of a chunk (64), H key heads, V value heads, K key dimension,
D value dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from adjudge.ops.tables import CHUNK
from adjudge.ops.triton_conv import convolve
from adjudge.ops.triton_terms import product


@dataclass(frozen=True, slots=True)
class Chunks:
    """kq_CH2TK: unit keys, then unit queries; v_CVTD; pair_CVTT: s · QKᵀ ∘ D; inverse_CVTT: N with
    β on its columns; gate_CVT: c, beta_CVT, both FP32."""

    kq_CH2TK: Tensor
    v_CVTD: Tensor
    pair_CVTT: Tensor
    inverse_CVTT: Tensor
    gate_CVT: Tensor
    beta_CVT: Tensor


@triton.jit
def _solve_blocks(upper, SIZE: tl.constexpr):
    """(I + A)⁻¹ of the diagonal blocks of a strictly lower A [64, 64], row by row.

    upper: Aᵀ. Row i of an inverse is e_i − Σ_j A_ij row_j; A_ij is read as column i of Aᵀ, which
    lies along the rows j as the sum needs it.
    """
    count: tl.constexpr = 64 // SIZE
    block = tl.arange(0, count)
    own = (block[:, None] == block[None, :])[:, None, :, None]
    j = tl.arange(0, SIZE)
    blocks = tl.sum(tl.where(own, tl.reshape(upper, [count, SIZE, count, SIZE]), 0.0), 2)
    T = tl.where((j[None, :, None] == j[None, None, :]) & (block[:, None, None] >= 0), 1.0, 0.0)
    for i in tl.static_range(1, SIZE):
        a = tl.sum(tl.where(j[None, None, :] == i, blocks, 0.0), 2)
        row = tl.sum(a[:, :, None] * T, 1)
        T -= tl.where(j[None, :, None] == i, row[:, None, :], 0.0)
    return tl.reshape(tl.where(own, T[:, :, None, :], 0.0), [64, 64])


@triton.jit
def _join_blocks(A, T, i, SIZE: tl.constexpr, kind: tl.constexpr):
    """From the inverses of SIZE blocks to those of 2 · SIZE blocks: T − T M T, M joins pairs."""
    joins = ((i[:, None] // (2 * SIZE)) == (i[None, :] // (2 * SIZE))) & (
        (i[:, None] // SIZE) != (i[None, :] // SIZE)
    )
    return T - product(T, product(tl.where(joins, A, 0.0), T, kind), kind)


@triton.jit
def _prepare(
    x_ptr, a_log_ptr, dt_bias_ptr, chunk_rows_ptr, chunk_len_ptr,
    kq_ptr, pair_ptr, inverse_ptr, gate_ptr, beta_ptr,
    x_stride, scale, B_AT: tl.constexpr, A_AT: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr,
    DK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if tl.load(chunk_len_ptr + chunk) == 0:
        return
    key_head = head // (HV // HK)
    kind = kq_ptr.dtype.element_ty
    i = tl.arange(0, 64)
    at = chunk * HV + head
    row = tl.load(chunk_rows_ptr + chunk * 64 + i)
    used = row >= 0
    gates = x_ptr + row.to(tl.int64) * x_stride + head
    b = tl.load(gates + B_AT, mask=used, other=0.0).to(tl.float32)
    a = tl.load(gates + A_AT, mask=used, other=0.0).to(tl.float32)
    beta = tl.where(used, (1.0 / (1.0 + tl.exp(-b))).to(kind).to(tl.float32), 0.0)
    a = a + tl.load(dt_bias_ptr + head).to(tl.float32)
    softplus = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(tl.minimum(a, 20.0))))
    decay = -tl.exp(tl.load(a_log_ptr + head).to(tl.float32)) * softplus
    c = tl.cumsum(tl.where(used, decay, 0.0), 0)
    tl.store(gate_ptr + at * 64 + i, c)
    tl.store(beta_ptr + at * 64 + i, beta)

    k_at = ((chunk * HK + key_head) * 128 + i)[:, None] * DK + tl.arange(0, DK)[None, :]
    k = tl.load(kq_ptr + k_at)
    q = tl.load(kq_ptr + k_at + 64 * DK)
    square_at = (at * 64 + i)[:, None] * 64 + i[None, :]
    lower, upper = i[:, None] > i[None, :], i[:, None] < i[None, :]
    between = c[:, None] - c[None, :]
    D = tl.exp(tl.where(upper, -between, between))
    pair = tl.where(upper, 0.0, tl.dot(q, tl.trans(k)) * D * scale)
    tl.store(pair_ptr + square_at, pair.to(kind))

    kk = tl.dot(k, tl.trans(k))
    A = tl.where(lower, kk * D * beta[:, None], 0.0)
    T = _solve_blocks(tl.where(upper, kk * D * beta[None, :], 0.0), 16)
    T = _join_blocks(A, T, i, 16, kind)
    T = _join_blocks(A, T, i, 32, kind)
    N = tl.where(i[:, None] == i[None, :], 0.0, T) * beta[None, :]
    tl.store(inverse_ptr + square_at, N.to(kind))


def prepare_chunks(
    x_RX: Tensor, conv_weight_C4: Tensor, A_log_V: Tensor, dt_bias_V: Tensor,
    ancestors_R3: Tensor, chunk_rows_CT: Tensor, chunk_len_C: Tensor, *, num_key_heads: int,
    num_value_heads: int, key_dim: int, value_dim: int,
) -> Chunks:  # fmt: skip
    """Of every chunk; those of length 0 stay undefined. Arguments: see triton_delta.gated_delta."""
    C, HK, HV, DK, DV = len(chunk_rows_CT), num_key_heads, num_value_heads, key_dim, value_dim
    b_at = 2 * HK * DK + HV * DV

    def scratch(*shape: int, dtype: torch.dtype = x_RX.dtype) -> Tensor:
        return torch.empty(C, *shape, dtype=dtype, device=x_RX.device)

    kq, v = scratch(HK, 2, CHUNK, DK), scratch(HV, CHUNK, DV)
    pair, inverse = (scratch(HV, CHUNK, CHUNK) for _ in range(2))
    gate, beta = (scratch(HV, CHUNK, dtype=torch.float32) for _ in range(2))
    convolve(x_RX, conv_weight_C4, ancestors_R3, chunk_rows_CT, chunk_len_C, kq, v)
    _prepare[(C, HV)](
        x_RX, A_log_V, dt_bias_V, chunk_rows_CT, chunk_len_C, kq, pair, inverse, gate, beta,
        x_RX.stride(0), DK**-0.5, b_at, b_at + HV, HK, HV, DK, num_warps=4,
    )  # fmt: skip
    return Chunks(kq, v, pair, inverse, gate, beta)
