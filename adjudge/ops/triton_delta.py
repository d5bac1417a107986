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
of two BF16 terms (15 bits of mantissa or more); N, the pair products and V' are rounded to BF16
there. The inverse solves 16 × 16 diagonal blocks row by row in FP32 and joins them with products
of two terms each; no power of A is formed, so equal keys cannot make one explode.

A small product takes as long as its start and its end. So the terms of one factor lie side by side
in one product of twice the width, and are added afterwards.

Nothing depends on which chunks share a launch: every reduction has one fixed shape.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adjudge.ops.launch import first_that_fits, num_multiprocessors
from adjudge.ops.refusal import check_groups, check_sizes
from adjudge.ops.tables import CHUNK

NARROW = 32
WIDE = 64
"""Values of a slice. A narrow one takes two thirds of a wide one's time: narrow slices are for when
all of them run at once, one on a multiprocessor."""
FEW_PROGRAMS = 528
"""Programs of a level whose number of runs only the device knows: four for each multiprocessor of
an H200."""
MOST_PROGRAMS = 1 << 16
"""Programs of a level at most; of more items each takes several."""
DEEP: tuple[int, ...] = (3, 2, 1)
SHALLOW: tuple[int, ...] = (1,)
"""Chunks in shared memory, as many as fit: a long run loads ahead; of many short ones two programs
run beside each other on a multiprocessor."""
MANY_CHUNKS = 8
"""Chunks from which `_convolve` has work enough for the whole device with 32 rows to a program."""
MANY_TURNS = 4
"""Programs for every multiprocessor from which runs are taken for many."""


@triton.jit
def _convolve(
    x_ptr, weight_ptr, ancestors_ptr, chunk_rows_ptr, chunk_len_ptr, kq_ptr, v_ptr, x_stride,
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
    kind = kq_ptr.dtype.element_ty
    y = (total / (1.0 + tl.exp(-total))).to(kind)
    chunk, i = position // 64, position % 64
    if is_value:
        at = ((chunk * HV + head - 2 * HK) * 64 + i)[:, None] * DV + column[None, :]
        tl.store(v_ptr + at, y, mask=inside[None, :])
    else:
        y = y.to(tl.float32)
        y = (y * (1.0 / tl.sqrt_rn(tl.sum(y * y, 1) + 1e-6))[:, None]).to(kind)
        part = tl.where(head < HK, 64, 0)
        at = ((chunk * HK + head % HK) * 128 + part + i)[:, None] * DK + column[None, :]
        tl.store(kq_ptr + at, y, mask=inside[None, :])


@triton.jit
def _high(x):
    """x with its mantissa cut to that of a BF16: rounding it singly takes a slow unit."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _beside(a, b):
    """[a | b] of two blocks [M, N]."""
    return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), [a.shape[0], 2 * a.shape[1]])


@triton.jit
def _terms(x, kind: tl.constexpr):
    """[high | low], both of `kind`, whose sum is x to 15 bits or more."""
    high = _high(x)
    return _beside(high.to(kind), (x - high).to(kind))


@triton.jit
def _sum_terms(x):
    """a + b of [a | b]: what a product with `_terms` comes to."""
    return tl.sum(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), 1)


@triton.jit
def _product(a, b, kind: tl.constexpr):
    """a b of two FP32 blocks, each as two terms of `kind`."""
    high = _high(a)
    b = _terms(b, kind)
    return _sum_terms(tl.dot((a - high).to(kind), b, tl.dot(high.to(kind), b)))


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
    return T - _product(T, _product(tl.where(joins, A, 0.0), T, kind), kind)


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


@triton.jit(do_not_specialize=["level"])
def _scan(
    kq_ptr, v_ptr, pair_ptr, inverse_ptr, gate_ptr, beta_ptr, state_ptr, out_ptr,
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
        kind = kq_ptr.dtype.element_ty
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
            k_at = ((chunk * HK + key_head) * 128 + i)[:, None] * DK + dk[None, :]
            square_at = (at * 64 + i)[:, None] * 64 + i[None, :]
            k = tl.load(kq_ptr + k_at)
            q = tl.load(kq_ptr + k_at + 64 * DK)
            v = tl.load(v_ptr + (at * 64 + i)[:, None] * DV + dv[None, :]).to(tl.float32)
            c = tl.load(gate_ptr + at * 64 + i)
            beta = tl.load(beta_ptr + at * 64 + i)
            c_last = tl.load(gate_ptr + at * 64 + 63)
            grown = tl.exp(c)

            terms = _terms(S, kind)
            X = v - grown[:, None] * _sum_terms(tl.dot(k, terms))
            N = tl.load(inverse_ptr + square_at)
            V = tl.dot(N, X.to(kind), X * beta[:, None])
            pair = tl.load(pair_ptr + square_at)
            out = tl.dot(pair, V.to(kind))
            out += _sum_terms(tl.dot(q, terms)) * (grown * scale)[:, None]
            row = tl.load(chunk_rows_ptr + chunk * 64 + i)
            fresh = (row >= 0) & (i >= tl.load(chunk_first_ptr + chunk))
            out_at = (row.to(tl.int64) * HV + head)[:, None] * DV + dv[None, :]
            tl.store(out_ptr + out_at, out.to(kind), mask=fresh[:, None])

            kept = _terms(V * tl.exp(c_last - c)[:, None], kind)
            S = S * tl.exp(c_last) + _sum_terms(tl.dot(tl.trans(k), kept))
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
    """See delta.gated_delta. x_RX: [R, q | k | v | b | a | …], last axis contiguous; the other
    tensors contiguous. Dimensions are powers of two of at least 16; raises Refused for others.
    """
    check_sizes(key_dim=key_dim, value_dim=value_dim)
    check_groups(num_value_heads=num_value_heads, num_key_heads=num_key_heads)
    R, C = x_RX.shape[0], chunk_rows_CT.shape[0]
    HK, HV, DK, DV = num_key_heads, num_value_heads, key_dim, value_dim
    b_at = 2 * HK * DK + HV * DV

    def scratch(*shape: int, dtype: torch.dtype = x_RX.dtype) -> Tensor:
        return torch.empty(C, *shape, dtype=dtype, device=x_RX.device)

    kq, v = scratch(HK, 2, CHUNK, DK), scratch(HV, CHUNK, DV)
    pair, inverse = (scratch(HV, CHUNK, CHUNK) for _ in range(2))
    gate, beta = (scratch(HV, CHUNK, dtype=torch.float32) for _ in range(2))
    scale = DK**-0.5
    rows = 16 if C < MANY_CHUNKS else 32
    _convolve[(C * CHUNK // rows, 2 * HK + HV)](
        x_RX, conv_weight_C4, ancestors_R3, chunk_rows_CT, chunk_len_C, kq, v,
        x_RX.stride(0), HK, HV, DK, DV, max(DK, DV), rows, num_warps=4,
    )  # fmt: skip
    _prepare[(C, HV)](
        x_RX, A_log_V, dt_bias_V, chunk_rows_CT, chunk_len_C, kq, pair, inverse, gate, beta,
        x_RX.stride(0), scale, b_at, b_at + HV, HK, HV, DK, num_warps=4,
    )  # fmt: skip
    out_RVD = x_RX.new_empty(R, HV, DV)
    for level, num_runs in enumerate(level_runs):
        width, items, depths = _slices(x_RX, level, num_runs, HV, DV)

        def scan(depth: int, level: int = level, width: int = width, items: int = items) -> None:
            _scan[(min(items, MOST_PROGRAMS),)](
                kq, v, pair, inverse, gate, beta, state_SVKD, out_RVD, run_first_N, run_count_N,
                run_state_in_N, level_start_L, chunk_state_out_C, chunk_rows_CT, chunk_first_C,
                level, scale, HK, HV, DK, DV, width, num_warps=4, num_stages=depth,
            )  # fmt: skip

        first_that_fits(("scan", width, depths, DK), x_RX, depths, scan)
    return out_RVD


def _slices(
    x: Tensor, level: int, num_runs: int, HV: int, DV: int
) -> tuple[int, int, tuple[int, ...]]:
    """(width of a slice, programs, depths) of `_scan` for one level.

    num_runs: 0 if only the device knows. Then level 0 is taken for one long run, and those above
    it for many short ones.
    """
    at_once = num_multiprocessors(x)
    if level == 0 and max(num_runs, 1) * HV * (DV // NARROW) <= at_once:
        width, depths = min(DV, NARROW), DEEP
    else:
        width = min(DV, WIDE)
        many = num_runs * HV * (DV // width) >= MANY_TURNS * at_once
        depths = SHALLOW if many or (level > 0 and num_runs == 0) else DEEP
    return width, num_runs * HV * (DV // width) or FEW_PROGRAMS, depths
