"""The MLP's gate. Legend: R rows, I intermediate size."""

from __future__ import annotations

from torch import Tensor

from adjudge.ops.stage import Stage

BLOCK = 128
"""Rows that a CPU takes at once."""


def silu_mul(gate_up_R2I: Tensor) -> Tensor:
    """[R, I] of round(silu(gate)) · up, rounded, from contiguous [R, gate | up]."""
    if gate_up_R2I.is_cuda:
        from adjudge.ops import triton_rows

        return triton_rows.silu_mul(gate_up_R2I)
    gate_RI, up_RI = gate_up_R2I.chunk(2, dim=-1)
    out_RI = gate_up_R2I.new_empty(gate_RI.shape)
    stage = Stage(min(BLOCK, len(out_RI)), out_RI.shape[1])
    for gate, up, out in zip(
        gate_RI.split(BLOCK), up_RI.split(BLOCK), out_RI.split(BLOCK), strict=True
    ):
        rows = stage.rows[: len(gate)]
        rows.copy_(gate)
        stage.silu_()
        out.copy_(rows).mul_(up)
    return out_RI
