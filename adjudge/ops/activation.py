"""The MLP's gate. Legend: R rows, I intermediate size."""

from __future__ import annotations

import torch
from torch import Tensor


def silu_mul(gate_up_R2I: Tensor) -> Tensor:
    """[R, I] of round(silu(gate)) · up, rounded, from contiguous [R, gate | up]."""
    if gate_up_R2I.is_cuda:
        from adjudge.ops import triton_rows

        return triton_rows.silu_mul(gate_up_R2I)
    gate_RI, up_RI = gate_up_R2I.chunk(2, dim=-1)
    gate = gate_RI.float()
    silu = gate / torch.exp(-gate).add_(1.0)
    return silu.to(gate_up_R2I.dtype).mul_(up_RI)
