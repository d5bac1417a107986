"""Causal depthwise convolution with SiLU of tiles, on a CPU.

Legend: R rows, C channels, M tiles, T positions of a tile, L = T + 3 inputs of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from adjudge.ops.cpu_products import onednn_runs
from adjudge.ops.scan import BEFORE, TILE, Span
from adjudge.ops.stage import silu_blocks_


def causal_conv_silu(
    x_RC: Tensor, kernel_C114: Tensor, windows: Sequence[Sequence[Span]]
) -> Tensor:
    """[M, T, C] of round(silu(Σ_t kernel[c, 3 − t] · x[the position t before])).

    windows: where the inputs of each tile lie; what they leave out is zero. x_RC may have
    strided rows; kernel_C114: [C, 1, 1, 4] in its dtype; sums and silu are FP32. The tiles are
    shown to the library as images of height 1 whose channels are the last axis in memory.
    In FP32 silu is torch's, which errs by 1e-7 of its value; oneDNN's by 2.5e-7.
    """
    M, C, L = len(windows), x_RC.shape[1], BEFORE + TILE
    window_MLC = x_RC.new_empty(M, L, C)
    for window_LC, spans in zip(window_MLC, windows, strict=True):
        end = spans[-1].place + spans[-1].count
        window_LC[: spans[0].place] = 0
        window_LC[end:] = 0
        for span in spans:
            window_LC[span.place : span.place + span.count] = x_RC[span.row : span.row + span.count]
    images = window_MLC.as_strided((M, C, 1, L), (L * C, 1, L * C, C))
    if x_RC.dtype == torch.bfloat16 and onednn_runs(x_RC.dtype):
        found: Tensor = torch.ops.mkldnn._convolution_pointwise(
            images, kernel_C114, None, [0, 0], [1, 1], [1, 1], C, "swish", [], ""
        )
        return found.squeeze(2).transpose(1, 2)
    sums = functional.conv2d(images.float(), kernel_C114.float(), groups=C)
    y_MTC = sums.squeeze(2).transpose(1, 2).contiguous()
    silu_blocks_(y_MTC)
    return y_MTC.to(x_RC.dtype)
