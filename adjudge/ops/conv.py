"""Causal depthwise convolution with SiLU over a tree, on a CPU.

Legend: R rows, C channels, B rows of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from adjudge.ops.stage import Stage

BLOCK = 128
"""Rows convolved at once; always this many, so that one compiled kernel serves all."""

TAPS = 4


def causal_conv_silu(x_RC: Tensor, weight_C4: Tensor, ancestors_R3: Tensor) -> Tensor:
    """[R + 1, C] of round(silu(Σ_t weight[c, 3 − t] · x[the row t tokens before])).

    ancestors_R3: −1 where the path has not begun, which contributes zero. The last row is zero:
    it stands for padding. x_RC may have strided rows; arithmetic is FP32.
    """
    R, C = x_RC.shape
    out = x_RC.new_empty(R + 1, C)
    out[R] = 0
    kernel_C114 = weight_C4.float().view(C, 1, 1, TAPS)
    window = torch.zeros(BLOCK + TAPS - 1, C)
    stage = Stage(BLOCK, C)
    for start in range(0, R, BLOCK):
        size = min(BLOCK, R - start)
        window[: TAPS - 1] = window[BLOCK:].clone()
        window[TAPS - 1 :][:size] = x_RC[start : start + size]
        _convolve(window, kernel_C114, stage)
        out[start : start + size] = stage.rows[:size]

    before_R3 = torch.arange(R)[:, None] - torch.arange(1, TAPS)
    forked = (ancestors_R3 != before_R3).any(1).nonzero().squeeze(1)
    for rows in forked.split(BLOCK // TAPS):
        path = torch.cat([ancestors_R3[rows].flip(1).long(), rows[:, None]], 1).flatten()
        window[: len(path)] = x_RC[path.clamp(min=0)]
        window[: len(path)][path < 0] = 0
        _convolve(window, kernel_C114, stage)
        out[rows] = stage.rows[: len(path) : TAPS].to(out.dtype)
    return out


def _convolve(window: Tensor, kernel_C114: Tensor, stage: Stage) -> None:
    """stage ← silu(the window's convolution), output row i from window rows i … i + 3.

    The window is shown as an image of height 1 whose channels are the last axis in memory.
    """
    L, C = window.shape
    image = window.as_strided((1, C, 1, L), (L * C, 1, L * C, C))
    stage.rows.copy_(functional.conv2d(image, kernel_C114, groups=C)[0, :, 0].T)
    stage.silu_()
