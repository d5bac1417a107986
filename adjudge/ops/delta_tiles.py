"""The gated delta rule on tiles, on a CPU: what needs no state, and one step that does.

With c = cumsum(g) inside a tile, D_ij = exp(c_i − c_j) for i ≥ j, K and Q normalised:

    A  = strictly lower (β_i k_i·k_j D_ij)
    V' = (I + A)⁻¹ β ∘ (V − exp(c) ∘ K S)
    O  = exp(c) ∘ Q S + (Q Kᵀ ∘ D) V'
    S ← exp(c_last) S + (K ∘ exp(c_last − c))ᵀ V'

Normalisation and decay scale rows, so they are applied to the small factors: q and k enter the
products as they came from the convolution.

Legend: M tiles, T positions of a tile, H key heads, G value heads of one key head, V = H·G, K key
dimension, D value dimension, R rows, N runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from adjudge.ops.conv import causal_conv_silu
from adjudge.ops.scan import Span

BLOCK = 8
"""Size of the diagonal blocks that are inverted by a power series; see `unit_lower_inverse`."""

LEAST_INVERTED = 16
"""Matrices inverted at once, at least: torch sends batched products of at most 16³ multiplications
in all to another library, whose last bits differ."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What tiles read, by row.

    x_RC: the convolution's inputs, in the storage dtype; kernel_C114: its weights, float32;
    beta_RV, decay_RV: float32, the last row zero; sizes: H, G, K, D.
    """

    x_RC: Tensor
    kernel_C114: Tensor
    beta_RV: Tensor
    decay_RV: Tensor
    sizes: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Prepared tiles, FP32.

    qk_MH2TK: q, then k, not normalised; k_MHTK: k alone; inverse_MVTT: (I + A)⁻¹ ∘ β_j;
    pair_MVTT: Q Kᵀ ∘ D; read_MV2T1: turns q·S into exp(c) ∘ Q S, and k·S likewise; write_MVT1:
    turns V' into exp(c_last − c) ∘ V' over the length of k; fade_MV: exp(c_last).
    """

    qk_MH2TK: Tensor
    k_MHTK: Tensor
    v_MVTD: Tensor
    inverse_MVTT: Tensor
    pair_MVTT: Tensor
    read_MV2T1: Tensor
    write_MVT1: Tensor
    fade_MV: Tensor


def prepare(inputs: Inputs, windows: Sequence[Sequence[Span]], rows_MT: Tensor) -> Tiles:
    """The tiles with these convolution inputs and rows (see scan.Group)."""
    H, G, K, D = inputs.sizes
    M, T = rows_MT.shape
    V = H * G
    qkv_MTC = causal_conv_silu(inputs.x_RC, inputs.kernel_C114, windows)
    qk_MT2HK = qkv_MTC[..., : 2 * H * K].view(M, T, 2, H, K)
    qk_MH2TK = torch.empty(M, H, 2, T, K)
    qk_MH2TK.copy_(qk_MT2HK.permute(0, 3, 2, 1, 4))
    k_MHTK = torch.empty(M, H, T, K)
    k_MHTK.copy_(qk_MT2HK[:, :, 1].transpose(1, 2))
    v_MVTD = torch.empty(M, V, T, D)
    v_MVTD.copy_(qkv_MTC[..., 2 * H * K :].view(M, T, V, D).transpose(1, 2))

    rows = rows_MT.flatten()

    def per_head(gates_RV: Tensor) -> Tensor:
        return gates_RV[rows].view(M, T, V).transpose(1, 2).contiguous()

    beta_MVT = per_head(inputs.beta_RV)
    c_MVT = per_head(inputs.decay_RV).cumsum(-1)

    unit_MH2T = torch.linalg.vector_norm(qk_MH2TK, dim=-1).square_().add_(1e-6).rsqrt_()
    unit_MH2T[:, :, 0] *= K**-0.5
    keys_BKT = k_MHTK.view(M * H, T, K).transpose(1, 2)
    scores = torch.bmm(qk_MH2TK.view(M * H, 2 * T, K), keys_BKT)
    scores_MH2TT = scores.view(M, H, 2, T, T)
    scores_MH2TT.mul_(unit_MH2T.unsqueeze(-1)).mul_(unit_MH2T[:, :, 1, None, None])

    decay_MVTT = (c_MVT.unsqueeze(-1) - c_MVT.unsqueeze(-2)).clamp_(max=0.0).exp_()
    decay_MVTT.mul_(torch.ones(T, T).tril())
    decay_MHGTT = decay_MVTT.view(M, H, G, T, T)
    pair_MVTT = (decay_MHGTT * scores_MH2TT[:, :, None, 0]).view(M, V, T, T)
    A_MVTT = decay_MHGTT.mul_(scores_MH2TT[:, :, None, 1]).view(M, V, T, T)
    A_MVTT.mul_(beta_MVT.unsqueeze(-1))
    inverse = unit_lower_inverse(A_MVTT.view(M * V, T, T)).view(M, V, T, T)

    grown_MV1T = c_MVT.exp().unsqueeze(2)
    unit_MV2T = unit_MH2T.repeat_interleave(G, dim=1)
    last_MV1 = c_MVT[:, :, -1:]
    write_MVT = (last_MV1 - c_MVT).exp_().mul_(unit_MV2T[:, :, 1])
    return Tiles(
        qk_MH2TK=qk_MH2TK,
        k_MHTK=k_MHTK,
        v_MVTD=v_MVTD,
        inverse_MVTT=inverse.mul_(beta_MVT.unsqueeze(-2)),
        pair_MVTT=pair_MVTT,
        read_MV2T1=(unit_MV2T * grown_MV1T).unsqueeze(-1),
        write_MVT1=write_MVT.unsqueeze(-1),
        fade_MV=last_MV1.squeeze(-1).exp(),
    )


def advance(
    tiles: Tiles, start: int, stop: int, state_NHKX: Tensor | None, num_updated: int
) -> tuple[Tensor, Tensor | None]:
    """Tiles [start, stop), one for each of the first runs: their outputs and the runs' states.

    state_NHKX: X = G·D, None for the zero state; the first `num_updated` states are moved past
    these tiles, in place where there is a state. Returns o_MVTD and the state.
    """
    qk_MH2TK = tiles.qk_MH2TK[start:stop]
    M, H, _, T, K = qk_MH2TK.shape
    v_MVTD = tiles.v_MVTD[start:stop]
    V, D = v_MVTD.shape[1], v_MVTD.shape[3]
    G = V // H

    pair = tiles.pair_MVTT[start:stop].view(M * V, T, T)
    inverse = tiles.inverse_MVTT[start:stop].view(M * V, T, T)
    if state_NHKX is None:
        new = torch.bmm(inverse, v_MVTD.reshape(M * V, T, D))
        o = torch.bmm(pair, new)
    else:
        state = state_NHKX[:M].view(M * H, K, G * D)
        seen = torch.bmm(qk_MH2TK.view(M * H, 2 * T, K), state)
        seen_MHG2TD = seen.view(M, H, 2, T, G, D).permute(0, 1, 4, 2, 3, 5)
        read_MHG2T1 = tiles.read_MV2T1[start:stop].view(M, H, G, 2, T, 1)
        rest = torch.empty(M, H, G, T, D)
        torch.mul(seen_MHG2TD[:, :, :, 1], read_MHG2T1[:, :, :, 1], out=rest)
        torch.sub(v_MVTD.view(M, H, G, T, D), rest, out=rest)
        new = torch.bmm(inverse, rest.view(M * V, T, D))
        o = torch.mul(seen_MHG2TD[:, :, :, 0], read_MHG2T1[:, :, :, 0], out=rest)
        o = o.view(M * V, T, D).baddbmm_(pair, new)

    if num_updated:
        N = num_updated
        write_NHGT1 = tiles.write_MVT1[start : start + N].view(N, H, G, T, 1)
        written = torch.empty(N, H, T, G, D)
        torch.mul(new.view(M, H, G, T, D)[:N], write_NHGT1, out=written.permute(0, 1, 3, 2, 4))
        keys = tiles.k_MHTK[start : start + N].view(N * H, T, K).transpose(1, 2)
        written_BTX = written.view(N * H, T, G * D)
        if state_NHKX is None:
            state_NHKX = torch.bmm(keys, written_BTX).view(N, H, K, G * D)
        else:
            fade_NH1G1 = tiles.fade_MV[start : start + N].view(N, H, 1, G, 1)
            kept = state_NHKX[:N]
            kept.view(N, H, K, G, D).mul_(fade_NH1G1)
            kept.view(N * H, K, G * D).baddbmm_(keys, written_BTX)
    return o.view(M, V, T, D), state_NHKX


def unit_lower_inverse(A_BTT: Tensor) -> Tensor:
    """[B, T, T]: (I + A)⁻¹ for the strictly lower part of A; T = 8 · 2ⁿ.

    Blocks of 8 by (I − A)(I + A²)(I + A⁴), which is exact there since A⁸ = 0; then pairs of
    blocks are joined by −T₂₂ A₂₁ T₁₁. Similar keys make entries of Aⁿ grow like binomials of the
    block size, so the powers stop at 8 whatever the tile.
    """
    B, T = A_BTT.shape[:2]
    if B < LEAST_INVERTED:
        return unit_lower_inverse(functional.pad(A_BTT, (0, 0, 0, 0, 0, LEAST_INVERTED - B)))[:B]
    size, count = BLOCK, T // BLOCK
    power = _diagonal(A_BTT, size).reshape(B * count, size, size)
    power = power * torch.ones(size, size).tril(-1)
    inverse = torch.eye(size) - power
    for _ in range(2):
        power = torch.bmm(power, power)
        inverse = torch.baddbmm(inverse, inverse, power)
    while count > 1:
        count //= 2
        pairs = inverse.view(B * count, 2, size, size)
        below = _diagonal(A_BTT, 2 * size)[..., size:, :size].reshape(B * count, size, size)
        joined = torch.zeros(B * count, 2 * size, 2 * size)
        joined[:, :size, :size] = pairs[:, 0]
        joined[:, size:, size:] = pairs[:, 1]
        joined[:, size:, :size] = torch.bmm(torch.bmm(pairs[:, 1], below), pairs[:, 0]).neg_()
        inverse, size = joined, 2 * size
    return inverse


def _diagonal(A_BTT: Tensor, size: int) -> Tensor:
    """[B, T / size, size, size]: the blocks on the diagonal, as a view."""
    B, T = A_BTT.shape[:2]
    blocks = A_BTT.view(B, T // size, size, T // size, size)
    return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
