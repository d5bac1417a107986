"""The gated delta rule's state through the chunks of a path, in Triton: level by level.

One program carries the state of a run, a value head and a slice of the values, by the formulas of
triton_delta. The state, which errors would gather in, and what is added to it enter products as two
terms (15 bits of mantissa or more); N, the pair products and V' are rounded to BF16 there.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from adjudge.ops.launch import first_that_fits, num_multiprocessors
from adjudge.ops.triton_chunks import Chunks
from adjudge.ops.triton_terms import split_terms, sum_terms

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
MANY_TURNS = 4
"""Programs for every multiprocessor from which runs are taken for many."""


@triton.jit(do_not_specialize=["level"])
def _scan(
    kq_ptr, v_ptr, pair_ptr, inverse_ptr, gate_ptr, beta_ptr, state_ptr, out_ptr,
    run_first_ptr, run_count_ptr, run_state_ptr, level_ptr, chunk_state_ptr,
    chunk_rows_ptr, chunk_first_ptr, level, scale,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """All runs of one level: a program takes (run, head, slice of values) after item.

    SHORT: leaves out a state that nobody reads, a quarter of a run of one chunk; in a long run the
    choice would hinder loading ahead.
    """
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

            terms = split_terms(S, kind)
            X = v - grown[:, None] * sum_terms(tl.dot(k, terms))
            N = tl.load(inverse_ptr + square_at)
            V = tl.dot(N, X.to(kind), X * beta[:, None])
            pair = tl.load(pair_ptr + square_at)
            # Before q · terms: V must not take their place (docs/gpu.md, a compiler's fault).
            out = tl.dot(pair, V.to(kind))
            out += sum_terms(tl.dot(q, terms)) * (grown * scale)[:, None]
            row = tl.load(chunk_rows_ptr + chunk * 64 + i)
            fresh = (row >= 0) & (i >= tl.load(chunk_first_ptr + chunk))
            out_at = (row.to(tl.int64) * HV + head)[:, None] * DV + dv[None, :]
            tl.store(out_ptr + out_at, out.to(kind), mask=fresh[:, None])

            target = tl.load(chunk_state_ptr + chunk).to(tl.int64)
            goes_on = (step + 1 < count) | (target > 0) if SHORT else True
            if goes_on:
                kept = split_terms(V * tl.exp(c_last - c)[:, None], kind)
                S = S * tl.exp(c_last) + sum_terms(tl.dot(tl.trans(k), kept))
                if target > 0:
                    tl.store(state_ptr + target * (HV * DK * DV) + state_at, S)


def scan_chunks(
    chunks: Chunks, state_SVKD: Tensor, out_RVD: Tensor, chunk_rows_CT: Tensor,
    chunk_first_C: Tensor, chunk_state_out_C: Tensor, run_first_N: Tensor, run_count_N: Tensor,
    run_state_in_N: Tensor, level_start_L: Tensor, *, level_runs: tuple[int, ...],
) -> None:  # fmt: skip
    """Fills out_RVD's rows that are new in a chunk, and the state slots that are kept."""
    HK, HV = chunks.kq_CH2TK.shape[1], chunks.v_CVTD.shape[1]
    DK, DV = chunks.kq_CH2TK.shape[-1], chunks.v_CVTD.shape[-1]
    for level, num_runs in enumerate(level_runs):
        width, items, depths = _slices(out_RVD, level, num_runs, HV, DV)

        def scan(depth: int, level: int = level, width: int = width, items: int = items) -> None:
            _scan[(min(items, MOST_PROGRAMS),)](
                chunks.kq_CH2TK, chunks.v_CVTD, chunks.pair_CVTT, chunks.inverse_CVTT,
                chunks.gate_CVT, chunks.beta_CVT, state_SVKD, out_RVD, run_first_N, run_count_N,
                run_state_in_N, level_start_L, chunk_state_out_C, chunk_rows_CT, chunk_first_C,
                level, DK**-0.5, HK, HV, DK, DV, width, depth == 1, num_warps=4,
                num_stages=depth,
            )  # fmt: skip

        first_that_fits(("scan", width, depths, DK), out_RVD, depths, scan)


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
