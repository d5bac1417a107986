"""Causal depthwise convolution with SiLU over a tree, on a CPU.

Legend: R rows, C channels, B rows of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adjudge.ops.stage import Stage

BLOCK = 64


def causal_conv_silu(x_RC: Tensor, weight_C4: Tensor, ancestors_R3: Tensor) -> Tensor:
    """[R + 1, C] of round(silu(Σ_t weight[c, 3 − t] · x[the row t tokens before])).

    ancestors_R3: −1 where the path has not begun, which contributes zero. The last row is zero:
    it stands for padding. x_RC may have strided rows; arithmetic is FP32.
    """
    R, C = x_RC.shape
    out = x_RC.new_empty(R + 1, C)
    out[R] = 0
    taps_4C = weight_C4.float().T.contiguous()
    window = torch.zeros(BLOCK + 3, C)
    product = torch.empty(BLOCK, C)
    stage = Stage(BLOCK, C)
    for start in range(0, R, BLOCK):
        size = min(BLOCK, R - start)
        window[:3] = window[BLOCK:].clone()
        window[3 : 3 + size] = x_RC[start : start + size]
        _convolve([window[3 - back :][:BLOCK] for back in range(4)], taps_4C, stage, product)
        out[start : start + size] = stage.rows[:size]

    consecutive_R3 = torch.arange(R)[:, None] - torch.arange(1, 4)
    forked = (ancestors_R3 != consecutive_R3).any(1).nonzero().squeeze(1)
    for rows in forked.split(BLOCK):
        before = ancestors_R3[rows].long()
        size = len(rows)
        inputs = [torch.zeros(BLOCK, C) for _ in range(4)]
        inputs[0][:size] = x_RC[rows]
        for back in range(3):
            known = (before[:, back] >= 0).unsqueeze(1)
            inputs[back + 1][:size] = x_RC[before[:, back].clamp(min=0)] * known
        _convolve(inputs, taps_4C, stage, product)
        out[rows] = stage.rows[:size].to(out.dtype)
    return out


def _convolve(inputs: list[Tensor], taps_4C: Tensor, stage: Stage, product: Tensor) -> None:
    """stage ← silu(Σ_t inputs[t] · taps[3 − t]), the oldest first, product rounded before sum."""
    torch.mul(inputs[3], taps_4C[0], out=stage.rows)
    for back in (2, 1, 0):
        torch.mul(inputs[back], taps_4C[3 - back], out=product)
        stage.rows.add_(product)
    stage.silu_()
