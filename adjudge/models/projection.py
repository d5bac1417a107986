"""Weights of one or several projections of the same input, stacked into one product.

Legend: R rows, K inputs, N outputs of all projections together, L rank of a delta.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adjudge.checkpoint.contents import WeightSource
from adjudge.errors import CheckpointError
from adjudge.ops.cpu_products import packed
from adjudge.ops.linear import AS_IT_IS, LinearPlan, add_linear, add_lora, linear


@dataclass(frozen=True, slots=True)
class Delta:
    """An unmerged low-rank delta of the output columns [start, stop). a_LK, b_NL: float32."""

    start: int
    stop: int
    a_LK: Tensor
    b_NL: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class Projection:
    """weight_NK: the projections' rows in order, plain or packed; deltas: those kept unmerged."""

    weight_NK: Tensor
    deltas: tuple[Delta, ...] = ()

    def __call__(self, x_RK: Tensor, plan: LinearPlan = AS_IT_IS) -> Tensor:
        """[R, N], each delta added in FP32 and rounded once more."""
        y_RN = linear(x_RK, self.weight_NK, plan)
        for d in self.deltas:
            add_lora(y_RN[:, d.start : d.stop], x_RK, d.a_LK, d.b_NL, scale=d.scale, plan=plan)
        return y_RN

    def add_to(self, y_RN: Tensor, x_RK: Tensor, plan: LinearPlan = AS_IT_IS) -> None:
        """y ← y + what a call gives, in place. y_RN: contiguous."""
        if self.deltas:
            y_RN.add_(self(x_RK, plan))
        else:
            add_linear(y_RN, x_RK, self.weight_NK, plan)

    def factors(self) -> Iterator[Tensor]:
        """Every matrix that rows are multiplied with: the weight, then each delta's two."""
        yield self.weight_NK
        for delta in self.deltas:
            yield delta.a_LK
            yield delta.b_NL

    def packed(self) -> Projection:
        """The same, with a weight that a CPU multiplies by faster and that does not split."""
        return Projection(packed(self.weight_NK), self.deltas)

    def split(self, at: int) -> tuple[Projection, Projection]:
        """Output columns before `at` and from `at` on, on the same memory. No delta crosses it."""
        below = tuple(d for d in self.deltas if d.stop <= at)
        above = tuple(
            Delta(d.start - at, d.stop - at, d.a_LK, d.b_NL, d.scale)
            for d in self.deltas
            if d.start >= at
        )
        return Projection(self.weight_NK[:at], below), Projection(self.weight_NK[at:], above)


def read_projection(
    weights: WeightSource,
    parts: Sequence[tuple[str, int]],
    width: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Projection:
    """Reads the parts (name, outputs), one after the other, into one matrix on the device.

    width: K. Raises CheckpointError for a part of another shape, and whatever the source raises.
    """
    made = torch.empty(sum(size for _, size in parts), width, device=device, dtype=dtype)
    deltas = []
    start = 0
    for name, size in parts:
        part = made[start : start + size]
        part.copy_(read_tensor(weights, name, (size, width), device=device, dtype=dtype))
        lora = weights.lora(name)
        if lora is not None:
            a_LK, b_NL = lora.a.to(device), lora.b.to(device)
            deltas.append(Delta(start, start + size, a_LK, b_NL, lora.scale))
        start += size
    return Projection(made, tuple(deltas))


def read_tensor(
    weights: WeightSource,
    name: str,
    shape: tuple[int, ...],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """One tensor of the shape that the geometry asks for. Raises CheckpointError."""
    tensor = weights.read(name, device=device, dtype=dtype)
    if tensor.shape != shape:
        raise CheckpointError(f"{name}: shape {list(tensor.shape)}; expected {list(shape)}")
    return tensor


def of_each_shape(projections: Iterable[Projection]) -> list[Tensor]:
    """One matrix of each shape, dtype and layout that products run with."""
    found: dict[tuple[torch.Size, torch.dtype, torch.layout], Tensor] = {}
    for projection in projections:
        for factor in projection.factors():
            found.setdefault((factor.shape, factor.dtype, factor.layout), factor)
    return list(found.values())
