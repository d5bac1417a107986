"""The gated delta rule on tiles, on a CPU: what needs no state, and one step that does.

With c = cumsum(g) inside a tile, D_ij = exp(c_i − c_j) for i ≥ j, K and Q normalised:

    A  = strictly lower (β_i k_i·k_j D_ij)
    V' = (I + A)⁻¹ β ∘ (V − exp(c) ∘ K S)
    O  = exp(c) ∘ Q S + (Q Kᵀ ∘ D) V'
    S ← exp(c_last) S + (K ∘ exp(c_last − c))ᵀ V'

O and V' are linear in S, so all that does not need the state is computed for many tiles at once,
and a step is two products. With F = (I + A)⁻¹ β, P = Q Kᵀ ∘ D and E = exp(c_last − c):

    [O; E ∘ V'] = [P F; E ∘ F] V + ([exp(c) ∘ Q; 0] − [P F; E ∘ F] (exp(c) ∘ K)) S

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

    x_RC, kernel_C114: the convolution's inputs and weights, in the storage dtype;
    beta_RV, decay_RV: float32, the last row zero; sizes: H, G, K, D.
    """

    x_RC: Tensor
    kernel_C114: Tensor
    beta_RV: Tensor
    decay_RV: Tensor
    sizes: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Prepared tiles, FP32: a tile's [O; E ∘ V'] is given + reads · S.

    given_MV2TD: overwritten when a step reads it; k_MVTK: not normalised, its length being part
    of E; fade_MV11: exp(c_last).
    """

    given_MV2TD: Tensor
    reads_MV2TK: Tensor
    k_MVTK: Tensor
    fade_MV11: Tensor


def prepare(inputs: Inputs, windows: Sequence[Sequence[Span]], rows_MT: Tensor) -> Tiles:
    """The tiles with these convolution inputs and rows (see scan.Group)."""
    H, G, K, D = inputs.sizes
    M, T = rows_MT.shape
    V = H * G
    qkv_MTC = causal_conv_silu(inputs.x_RC, inputs.kernel_C114, windows)
    qk_MT2HK = qkv_MTC[..., : 2 * H * K].view(M, T, 2, H, K)
    qk_MH2TK = torch.empty(M, H, 2, T, K).copy_(qk_MT2HK.permute(0, 3, 2, 1, 4))
    k_MHTK = torch.empty(M, H, T, K).copy_(qk_MT2HK[:, :, 1].transpose(1, 2))
    v_MTVD = qkv_MTC[..., 2 * H * K :].view(M, T, V, D)
    v_MVTD = torch.empty(M, V, T, D).copy_(v_MTVD.transpose(1, 2))

    rows = rows_MT.flatten()

    def per_head(gates_RV: Tensor) -> Tensor:
        return gates_RV[rows].view(M, T, V).transpose(1, 2).contiguous()

    beta_MVT = per_head(inputs.beta_RV)
    c_MVT = per_head(inputs.decay_RV).cumsum(-1)
    last_MV1 = c_MVT[:, :, -1:]

    unit_MH2T = torch.linalg.vector_norm(qk_MH2TK, dim=-1).square_().add_(1e-6).rsqrt_()
    unit_MH2T[:, :, 0] *= K**-0.5
    scores = torch.bmm(qk_MH2TK.view(M * H, 2 * T, K), k_MHTK.view(M * H, T, K).transpose(1, 2))
    scores_MH2TT = scores.view(M, H, 2, T, T)
    scores_MH2TT.mul_(unit_MH2T.unsqueeze(-1)).mul_(unit_MH2T[:, :, 1, None, None])
    unit_MV2T = unit_MH2T.repeat_interleave(G, dim=1)

    decay_MVTT = (c_MVT.unsqueeze(-1) - c_MVT.unsqueeze(-2)).clamp_(max=0.0).exp_()
    decay_MVTT.mul_(torch.ones(T, T).tril())
    decay_MHGTT = decay_MVTT.view(M, H, G, T, T)
    pair = (decay_MHGTT * scores_MH2TT[:, :, None, 0]).view(M * V, T, T)
    A_MVTT = decay_MHGTT.mul_(scores_MH2TT[:, :, None, 1]).view(M, V, T, T)
    A_MVTT.mul_(beta_MVT.unsqueeze(-1))
    inverse_MVTT = unit_lower_inverse(A_MVTT.view(M * V, T, T)).view(M, V, T, T)
    inverse_MVTT.mul_(beta_MVT.unsqueeze(-2))

    ends_MVT = (last_MV1 - c_MVT).exp_().mul_(unit_MV2T[:, :, 1])
    F_MV2TT = torch.empty(M, V, 2, T, T)
    F_MV2TT[:, :, 0] = torch.bmm(pair, inverse_MVTT.view(M * V, T, T)).view(M, V, T, T)
    torch.mul(inverse_MVTT, ends_MVT.unsqueeze(-1), out=F_MV2TT[:, :, 1])
    given = torch.bmm(F_MV2TT.view(M * V, 2 * T, T), v_MVTD.view(M * V, T, D))

    grown_MV2T = unit_MV2T.mul_(c_MVT.exp().unsqueeze(2))
    F_MV2TT.mul_(grown_MV2T[:, :, 1, None, None].neg())
    k_MVTK = k_MHTK if G == 1 else k_MHTK.repeat_interleave(G, dim=1)
    reads = torch.bmm(F_MV2TT.view(M * V, 2 * T, T), k_MVTK.view(M * V, T, K))
    reads.view(M, H, G, 2, T, K)[:, :, :, 0].addcmul_(
        qk_MH2TK[:, :, None, 0], grown_MV2T[:, :, 0].view(M, H, G, T, 1)
    )
    return Tiles(
        given_MV2TD=given.view(M, V, 2, T, D),
        reads_MV2TK=reads.view(M, V, 2, T, K),
        k_MVTK=k_MVTK,
        fade_MV11=last_MV1.exp().unsqueeze(-1),
    )


def advance(
    tiles: Tiles, start: int, stop: int, state_NVKD: Tensor | None, num_updated: int
) -> tuple[Tensor, Tensor | None]:
    """Tiles [start, stop), one for each of the first runs: their outputs and the runs' states.

    state_NVKD: None for the zero state; the first `num_updated` states are moved past these
    tiles, in place where there is a state. Returns o_MVTD and the state.
    """
    found_MV2TD = tiles.given_MV2TD[start:stop]
    if state_NVKD is not None:
        reads = tiles.reads_MV2TK[start:stop].flatten(2, 3).flatten(0, 1)
        state = state_NVKD[: stop - start].flatten(0, 1)
        found_MV2TD.flatten(2, 3).flatten(0, 1).baddbmm_(reads, state)
    if num_updated:
        moved = slice(start, start + num_updated)
        keys = tiles.k_MVTK[moved].flatten(0, 1).transpose(1, 2)
        new = found_MV2TD[:num_updated, :, 1].flatten(0, 1)
        if state_NVKD is None:
            shape = (num_updated, -1, keys.shape[1], new.shape[2])
            state_NVKD = torch.bmm(keys, new).view(shape)
        else:
            kept_NVKD = state_NVKD[:num_updated].mul_(tiles.fade_MV11[moved])
            kept_NVKD.flatten(0, 1).baddbmm_(keys, new)
    return found_MV2TD[:, :, 0], state_NVKD


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
