"""Hidden rows -> FP32 logits: a scoring head, or rows of the vocabulary.

Legend: Q readout rows, H hidden size, L logits of a readout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adjudge.checkpoint.contents import Head
from adjudge.families import Readout

MOST_PRODUCTS = 1 << 24
"""Products of one readout held at once."""


@dataclass(frozen=True, slots=True)
class Heads:
    """What readouts are answered with, on the model's device.

    score: the checkpoint's scoring head, for readouts without label ids;
    labels: float32 [L, H] for each tuple of label ids that a family reads.
    """

    score: Head | None
    labels: Mapping[tuple[int, ...], Tensor] = field(default_factory=dict)

    @torch.inference_mode()
    def logits(
        self, hidden_QH: Tensor, readouts: Sequence[Readout], rows: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        """float32 [number of logits] for each readout, read at hidden row `rows[i]`.

        Raises KeyError for label ids without a row here, ValueError for a score without a head.
        """
        wanted: dict[Readout, list[int]] = {}
        for index, readout in enumerate(readouts):
            wanted.setdefault(readout, []).append(index)
        found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(readouts)
        for readout, indices in wanted.items():
            at = torch.tensor([rows[i] for i in indices], device=hidden_QH.device)
            values = self._read(hidden_QH[at].float(), readout).cpu().numpy()
            for index, value in zip(indices, values, strict=True):
                found[index] = value
        return found

    def _read(self, hidden_QH: Tensor, readout: Readout) -> Tensor:
        """[Q, L]."""
        if readout.label_ids is not None:
            return dot(hidden_QH, self.labels[readout.label_ids])
        if self.score is None:
            raise ValueError("a score is asked for, but the checkpoint has no scoring head")
        return dot(hidden_QH, self.score.weight.view(1, -1)) + self.score.bias


def dot(x_QH: Tensor, y_LH: Tensor) -> Tensor:
    """[Q, L] of x · y in FP32, halves added to halves: one order of sums for any Q, any device."""
    most = max(1, MOST_PRODUCTS // y_LH.numel())
    return torch.cat([_halve(part[:, None] * y_LH) for part in x_QH.split(most)])


def _halve(terms_QLH: Tensor) -> Tensor:
    width = terms_QLH.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        terms_QLH[..., : width - half] += terms_QLH[..., half:width]
        width = half
    return terms_QLH[..., 0]
