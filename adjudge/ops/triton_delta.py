"""The chunked gated delta rule in Triton: three kernels over the forest's chunks.

`_convolve` makes q, k and v of every chunk position (replayed ones again). `_prepare` runs once
per chunk and value head, all in parallel, and makes everything of the chunk that does not need
the state. `_scan` runs once per run, value head and slice of the value axis: it carries the state
through the run's chunks. With c = cumsum(g), D_ij = exp(c_i − c_j), K and Q normalised:

    A  = strictly lower (β_i k_i·k_j D_ij)     T = (I + A)⁻¹ = I + N
    V' = T (β ∘ (V − exp(c) ∘ K S))            O = s · exp(c) ∘ Q S + (s · QKᵀ ∘ D) V'
    S  ← exp(c_last) S + Kᵀ (exp(c_last − c) ∘ V')

which is the spec's U − W S with the common factor T taken out, so that neither U nor W is rounded
or stored. The state, which errors would gather in, and what is added to it enter products as sums
of two BF16 terms (16 bits of mantissa); N, the pair products and V' are rounded to BF16 there. The
inverse solves 16 × 16 diagonal blocks row by row in FP32 and joins them with products of three
BF16 terms (16 bits); no power of A is formed, so equal keys cannot make one explode.

Nothing depends on which chunks share a launch: every reduction has one fixed shape.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64
NARROW = 32
WIDE = 64
"""Values of a slice. A multiprocessor holds one program of either, and a narrow one takes two
thirds of a wide one's time: narrow slices are for when all of them run at once."""
FEW_PROGRAMS = 528
"""Programs of a level whose number of runs only the device knows."""
MOST_PROGRAMS = 1 << 16
FEW_CHUNKS = 1024
"""(Chunk, head) pairs up to which all of `_prepare` is on the device at once however many registers
it takes; with more of them, fewer registers let three programs share a multiprocessor."""


@triton.jit
def _convolve(
    x_ptr, weight_ptr, ancestors_ptr, chunk_rows_ptr, chunk_len_ptr, q_ptr, k_ptr, v_ptr, x_stride,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS positions of one head: Σ_t x[row_t] · weight[channel, 3 − t], SiLU, unit q and k."""
    if tl.load(chunk_len_ptr + tl.program_id(0) * ROWS // 64) == 0:
        return
    position = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    is_value = head >= 2 * HK
    start = tl.where(is_value, 2 * HK * DK + (head - 2 * HK) * DV, head * DK)
    column = tl.arange(0, BLOCK)
    inside = column < tl.where(is_value, DV, DK)
    channel = start + column
    row = tl.load(chunk_rows_ptr + position)
    used = row >= 0
    ancestor = ancestors_ptr + tl.where(used, row, 0).to(tl.int64) * 3
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for back in tl.static_range(3, -1, -1):
        if back == 0:
            source = row
        else:
            source = tl.load(ancestor + (back - 1), mask=used, other=-1)
        at = source.to(tl.int64)[:, None] * x_stride + channel[None, :]
        x = tl.load(x_ptr + at, mask=(source >= 0)[:, None] & inside[None, :], other=0.0)
        weight = tl.load(weight_ptr + channel * 4 + (3 - back), mask=inside, other=0.0)
        total += x.to(tl.float32) * weight.to(tl.float32)[None, :]
    kind = q_ptr.dtype.element_ty
    y = (total / (1.0 + tl.exp(-total))).to(kind)
    chunk, i = position // 64, position % 64
    if is_value:
        at = ((chunk * HV + head - 2 * HK) * 64 + i)[:, None] * DV + column[None, :]
        tl.store(v_ptr + at, y, mask=inside[None, :])
    else:
        y = y.to(tl.float32)
        y = (y * (1.0 / tl.sqrt_rn(tl.sum(y * y, 1) + 1e-6))[:, None]).to(kind)
        at = ((chunk * HK + head % HK) * 64 + i)[:, None] * DK + column[None, :]
        if head < HK:
            tl.store(q_ptr + at, y, mask=inside[None, :])
        else:
            tl.store(k_ptr + at, y, mask=inside[None, :])


@triton.jit
def _split(x, kind: tl.constexpr):
    """x as high + low, both of `kind`."""
    high = x.to(kind)
    return high, (x - high.to(tl.float32)).to(kind)


@triton.jit
def _solve_blocks(block_ptr, SIZE: tl.constexpr):
    """(I + A)⁻¹ in place, for 64 / SIZE strictly lower matrices A in memory, row by row."""
    count: tl.constexpr = 64 // SIZE
    block = tl.arange(0, count)
    j = tl.arange(0, SIZE)
    at = block[:, None] * (SIZE * SIZE) + j[None, :]
    T = tl.where((j[None, :, None] == j[None, None, :]) & (block[:, None, None] >= 0), 1.0, 0.0)
    for i in tl.static_range(1, SIZE):
        a = tl.load(block_ptr + at + i * SIZE)
        row = tl.sum(a[:, :, None] * T, 1)
        T -= tl.where(j[None, :, None] == i, row[:, None, :], 0.0)
    tl.debug_barrier()
    tl.store(block_ptr + at[:, None, :] + j[None, :, None] * SIZE, T)


@triton.jit
def _join_blocks(A, T, i, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """From the inverses of SIZE blocks to those of 2 · SIZE blocks: T − T M T, M joins pairs."""
    joins = ((i[:, None] // (2 * SIZE)) == (i[None, :] // (2 * SIZE))) & (
        (i[:, None] // SIZE) != (i[None, :] // SIZE)
    )
    right = tl.dot(tl.where(joins, A, 0.0), T, input_precision=PRECISION)
    return T - tl.dot(T, right, input_precision=PRECISION)


@triton.jit
def _prepare(
    x_ptr, a_log_ptr, dt_bias_ptr, chunk_rows_ptr, chunk_len_ptr,
    q_ptr, k_ptr, block_ptr, pair_ptr, inverse_ptr, gate_ptr, beta_ptr,
    x_stride, scale, B_AT: tl.constexpr, A_AT: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr,
    DK: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if tl.load(chunk_len_ptr + chunk) == 0:
        return
    key_head = head // (HV // HK)
    kind = k_ptr.dtype.element_ty
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

    dk = tl.arange(0, DK)
    qk_at = ((chunk * HK + key_head) * 64 + i)[:, None] * DK + dk[None, :]
    k = tl.load(k_ptr + qk_at)
    lower = i[:, None] >= i[None, :]
    D = tl.where(lower, tl.exp(tl.where(lower, c[:, None] - c[None, :], 0.0)), 0.0)
    A = tl.where(i[:, None] > i[None, :], tl.dot(k, tl.trans(k)) * D * beta[:, None], 0.0)
    blocks = block_ptr + at * (64 * SIZE)
    same = (i[:, None] // SIZE) == (i[None, :] // SIZE)
    block_at = i[:, None] * SIZE + i[None, :] % SIZE
    tl.store(blocks + block_at, A, mask=same)
    tl.debug_barrier()
    _solve_blocks(blocks, SIZE)

    square_at = (at * 64 + i)[:, None] * 64 + i[None, :]
    pair = tl.dot(tl.load(q_ptr + qk_at), tl.trans(k)) * D * scale
    tl.store(pair_ptr + square_at, pair.to(kind))

    tl.debug_barrier()
    T = tl.load(blocks + block_at, mask=same, other=0.0)
    if SIZE == 16:
        T = _join_blocks(A, T, i, 16, PRECISION)
    T = _join_blocks(A, T, i, 32, PRECISION)
    N = tl.where(i[:, None] == i[None, :], 0.0, T) * beta[None, :]
    tl.store(inverse_ptr + square_at, N.to(kind))


@triton.jit(do_not_specialize=["level"])
def _scan(
    q_ptr, k_ptr, v_ptr, pair_ptr, inverse_ptr, gate_ptr, beta_ptr, state_ptr, out_ptr,
    run_first_ptr, run_count_ptr, run_state_ptr, level_ptr, chunk_state_ptr,
    chunk_rows_ptr, chunk_first_ptr, level, scale,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """All runs of one level: a program takes (run, head, slice of values) after item."""
    SLICES: tl.constexpr = DV // BV
    first_run = tl.load(level_ptr + level)
    num_items = (tl.load(level_ptr + level + 1) - first_run) * (HV * SLICES)
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        run = first_run + item // (HV * SLICES)
        head = item // SLICES % HV
        count = tl.load(run_count_ptr + run)
        key_head = head // (HV // HK)
        kind = k_ptr.dtype.element_ty
        i = tl.arange(0, 64)
        dk = tl.arange(0, DK)
        dv = item % SLICES * BV + tl.arange(0, BV)
        state_at = (head * DK + dk)[:, None] * DV + dv[None, :]
        slot = tl.load(run_state_ptr + run).to(tl.int64)
        S = tl.load(state_ptr + slot * (HV * DK * DV) + state_at, mask=slot > 0, other=0.0)

        first = tl.load(run_first_ptr + run).to(tl.int64)
        for step in range(0, count):
            chunk = first + step
            at = chunk * HV + head
            qk_at = ((chunk * HK + key_head) * 64 + i)[:, None] * DK + dk[None, :]
            square_at = (at * 64 + i)[:, None] * 64 + i[None, :]
            k = tl.load(k_ptr + qk_at)
            q = tl.load(q_ptr + qk_at)
            v = tl.load(v_ptr + (at * 64 + i)[:, None] * DV + dv[None, :]).to(tl.float32)
            c = tl.load(gate_ptr + at * 64 + i)
            beta = tl.load(beta_ptr + at * 64 + i)
            c_last = tl.load(gate_ptr + at * 64 + 63)
            grown = tl.exp(c)

            S_high, S_low = _split(S, kind)
            X = v - grown[:, None] * tl.dot(k, S_low, tl.dot(k, S_high))
            N = tl.load(inverse_ptr + square_at)
            V = tl.dot(N, X.to(kind), X * beta[:, None])
            pair = tl.load(pair_ptr + square_at)
            out = tl.dot(q, S_low, tl.dot(q, S_high)) * (grown * scale)[:, None]
            out = tl.dot(pair, V.to(kind), out)
            row = tl.load(chunk_rows_ptr + chunk * 64 + i)
            fresh = (row >= 0) & (i >= tl.load(chunk_first_ptr + chunk))
            out_at = (row.to(tl.int64) * HV + head)[:, None] * DV + dv[None, :]
            tl.store(out_ptr + out_at, out.to(kind), mask=fresh[:, None])

            V_high, V_low = _split(V * tl.exp(c_last - c)[:, None], kind)
            S = tl.dot(tl.trans(k), V_low, tl.dot(tl.trans(k), V_high, S * tl.exp(c_last)))
            target = tl.load(chunk_state_ptr + chunk).to(tl.int64)
            if target > 0:
                tl.store(state_ptr + target * (HV * DK * DV) + state_at, S)


def gated_delta(
    x_RX: Tensor, conv_weight_C4: Tensor, A_log_V: Tensor, dt_bias_V: Tensor,
    ancestors_R3: Tensor, chunk_rows_CT: Tensor, chunk_first_C: Tensor, chunk_len_C: Tensor,
    chunk_state_out_C: Tensor, run_first_N: Tensor, run_count_N: Tensor, run_state_in_N: Tensor,
    level_start_L: Tensor, state_SVKD: Tensor, *, level_runs: tuple[int, ...],
    num_key_heads: int, num_value_heads: int, key_dim: int, value_dim: int,
) -> Tensor:  # fmt: skip
    """See delta.gated_delta. x_RX: [R, q | k | v | b | a | …], last axis contiguous."""
    R, C = x_RX.shape[0], chunk_rows_CT.shape[0]
    HK, HV, DK, DV = num_key_heads, num_value_heads, key_dim, value_dim
    b_at = 2 * HK * DK + HV * DV

    def scratch(*shape: int, dtype: torch.dtype = x_RX.dtype) -> Tensor:
        return torch.empty(C, *shape, dtype=dtype, device=x_RX.device)

    q, k, v = scratch(HK, CHUNK, DK), scratch(HK, CHUNK, DK), scratch(HV, CHUNK, DV)
    pair, inverse = (scratch(HV, CHUNK, CHUNK) for _ in range(2))
    gate, beta = (scratch(HV, CHUNK, dtype=torch.float32) for _ in range(2))
    size = 16
    blocks = scratch(HV, CHUNK // size, size, size, dtype=torch.float32)
    scale = DK**-0.5
    precision = "bf16x3" if x_RX.is_cuda else "ieee"
    rows = 16
    _convolve[(C * CHUNK // rows, 2 * HK + HV)](
        x_RX, conv_weight_C4, ancestors_R3, chunk_rows_CT, chunk_len_C, q, k, v,
        x_RX.stride(0), HK, HV, DK, DV, max(DK, DV), rows, num_warps=4,
    )  # fmt: skip
    _prepare[(C, HV)](
        x_RX, A_log_V, dt_bias_V, chunk_rows_CT, chunk_len_C, q, k, blocks, pair, inverse,
        gate, beta, x_RX.stride(0), scale, b_at, b_at + HV, HK, HV, DK, size,
        precision, num_warps=4, maxnreg=None if C * HV <= FEW_CHUNKS else 168,
    )  # fmt: skip
    out_RVD = x_RX.new_empty(R, HV, DV)
    for level, num_runs in enumerate(level_runs):
        narrow = level == 0 and max(num_runs, 1) * HV * (DV // NARROW) <= _num_multiprocessors(x_RX)
        width = min(DV, NARROW if narrow else WIDE)
        items = num_runs * HV * (DV // width) or FEW_PROGRAMS
        _scan[(min(items, MOST_PROGRAMS),)](
            q, k, v, pair, inverse, gate, beta, state_SVKD, out_RVD, run_first_N, run_count_N,
            run_state_in_N, level_start_L, chunk_state_out_C, chunk_rows_CT,
            chunk_first_C, level, scale, HK, HV, DK, DV, width, num_warps=4,
            num_stages=3 if width == NARROW else 2,
        )  # fmt: skip
    return out_RVD


def _num_multiprocessors(x: Tensor) -> int:
    if not x.is_cuda:
        return 132
    return torch.cuda.get_device_properties(x.device).multi_processor_count
