"""Causal depthwise convolution over the forest's chunks in Triton, with SiLU and unit q and k.

It makes q, k and v of every chunk position, those that a branch reads again as well. An input is
read once and stays in registers for the three positions after its own.

Legend: C chunks, T positions of a chunk (64), H key heads, V value heads, K key dimension,
D value dimension, X projected width.
"""

from __future__ import annotations

from math import gcd

import triton
import triton.language as tl
from torch import Tensor

from adjudge.ops.tables import CHUNK

MANY_CHUNKS = 12
"""Chunks from which 8 positions to a program, not 4, leave work enough for the whole device."""
MOST_HEADS = 4
"""Heads of a program, if their numbers divide by it."""


@triton.jit
def _input(x_ptr, row, x_stride, channel, inside):
    """x of one row, or zeros for row −1."""
    at = row.to(tl.int64) * x_stride + channel
    return tl.load(x_ptr + at, mask=inside & (row >= 0), other=0.0)


@triton.jit
def _convolve(
    x_ptr, weight_ptr, ancestors_ptr, chunk_rows_ptr, chunk_len_ptr, kq_ptr, v_ptr, x_stride,
    channel_stride, tap_stride, HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS positions of HEADS heads: Σ_t x[row_t] · weight[channel, 3 − t], SiLU, unit q and k."""
    begin = tl.program_id(0).to(tl.int64) * ROWS
    chunk, i = begin // 64, begin % 64
    if tl.load(chunk_len_ptr + chunk) == 0:
        return
    first_head = tl.program_id(1) * HEADS
    is_value = first_head >= 2 * HK
    head = first_head + tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK)[None, :]
    width = tl.where(is_value, DV, DK)
    inside = column < width
    start = tl.where(is_value, 2 * HK * DK + (head - 2 * HK) * DV, head * DK)
    channel = start[:, None] + column
    taps = weight_ptr + channel * channel_stride
    w0 = tl.load(taps, mask=inside, other=0.0).to(tl.float32)
    w1 = tl.load(taps + tap_stride, mask=inside, other=0.0).to(tl.float32)
    w2 = tl.load(taps + 2 * tap_stride, mask=inside, other=0.0).to(tl.float32)
    w3 = tl.load(taps + 3 * tap_stride, mask=inside, other=0.0).to(tl.float32)

    row = tl.load(chunk_rows_ptr + begin)
    ancestor = ancestors_ptr + tl.maximum(row, 0).to(tl.int64) * 3
    rows = ()
    inputs = ()
    for back in tl.static_range(3):
        before = tl.load(ancestor + (2 - back), mask=row >= 0, other=-1)
        inputs = inputs + (_input(x_ptr, before, x_stride, channel, inside),)
    for position in tl.static_range(ROWS):
        row = tl.load(chunk_rows_ptr + begin + position)
        rows = rows + (row,)
        inputs = inputs + (_input(x_ptr, row, x_stride, channel, inside),)

    kind = kq_ptr.dtype.element_ty
    if is_value:
        out = v_ptr + ((chunk * HV + head - 2 * HK) * 64 + i)[:, None] * DV + column
    else:
        part = tl.where(head < HK, 64, 0)
        out = kq_ptr + ((chunk * HK + head % HK) * 128 + part + i)[:, None] * DK + column
    for position in tl.static_range(ROWS):
        total = w0 * inputs[position].to(tl.float32)
        total += w1 * inputs[position + 1].to(tl.float32)
        total += w2 * inputs[position + 2].to(tl.float32)
        total += w3 * inputs[position + 3].to(tl.float32)
        y = tl.where(rows[position] >= 0, total / (1.0 + tl.exp(-total)), 0.0).to(kind)
        if not is_value:
            y = y.to(tl.float32)
            y = (y * (1.0 / tl.sqrt_rn(tl.sum(y * y, 1) + 1e-6))[:, None]).to(kind)
        tl.store(out + position * width, y, mask=inside)


def convolve(
    x_RX: Tensor, weight_C4: Tensor, ancestors_R3: Tensor, chunk_rows_CT: Tensor,
    chunk_len_C: Tensor, kq_CH2TK: Tensor, v_CVTD: Tensor,
) -> None:  # fmt: skip
    """Fills k and q, and v, of every chunk that has a length. x_RX: rows of [q | k | v | …]."""
    C, HK, _, _, DK = kq_CH2TK.shape
    HV, DV = v_CVTD.shape[1], v_CVTD.shape[3]
    rows = 4 if C < MANY_CHUNKS else 8
    heads, block = gcd(2 * HK, HV, MOST_HEADS), max(DK, DV)
    _convolve[(C * CHUNK // rows, (2 * HK + HV) // heads)](
        x_RX, weight_C4, ancestors_R3, chunk_rows_CT, chunk_len_C, kq_CH2TK, v_CVTD,
        x_RX.stride(0), *weight_C4.stride(), HK, HV, DK, DV, block, heads, rows,
        num_warps=max(1, heads * block // 256),
    )  # fmt: skip
