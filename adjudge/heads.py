"""Hidden rows -> FP32 logits: a scoring head, or rows of the vocabulary.

Legend: Q readout rows, H hidden size, L logits of a readout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adjudge.checkpoint import Checkpoint, Head, WeightSource
from adjudge.families import Readout

MOST_PRODUCTS = 1 << 24
"""Products held at once."""
MASS_ROWS = 64
"""Vocabulary rows of one step of a log-sum-exp: fixed, so that its order of sums is."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Rows of the LM head, FP32, fetched when first read and kept on the device.

    name: the canonical name of the matrix (the embedding where it is tied).
    """

    weights: WeightSource
    name: str
    size: int
    device: torch.device
    kept: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def rows(self, ids: tuple[int, ...]) -> Tensor:
        """float32 [L, H]. A family's label sets are mostly the beginnings of one, 254 of them for
        some: only the longest that was read is kept."""
        for known, rows_LH in self.kept.items():
            if known[: len(ids)] == ids:
                return rows_LH[: len(ids)]
        for known in [known for known in self.kept if ids[: len(known)] == known]:
            del self.kept[known]
        self.kept[ids] = self.weights.rows(self.name, ids, device=self.device)
        return self.kept[ids]

    def mass(self, hidden_QH: Tensor, dtype: torch.dtype) -> Tensor:
        """float32 [Q, 1]: log-sum-exp of all logits, each rounded to `dtype`; read in steps."""
        steps = []
        for start in range(0, self.size, MASS_ROWS):
            ids = range(start, min(start + MASS_ROWS, self.size))
            part_LH = self.weights.rows(self.name, ids, device=self.device)
            logits_QL = dot(hidden_QH, part_LH).to(dtype).float()
            steps.append(log_sum_exp(logits_QL))
        return log_sum_exp(torch.cat(steps, 1))


@dataclass(frozen=True, slots=True)
class Heads:
    """What readouts are answered with, on the model's device.

    score: the checkpoint's scoring head, for readouts without label ids; dtype: the model's.
    """

    score: Head | None
    vocabulary: Vocabulary
    dtype: torch.dtype

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> Heads:
        config = checkpoint.text_config
        name = "embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        score = checkpoint.head
        if score is not None:
            score = Head(score.weight.to(device), score.bias.to(device))
        return cls(score, Vocabulary(checkpoint.weights, name, config.vocab_size, device), dtype)

    @torch.inference_mode()
    def logits(
        self, hidden_QH: Tensor, readouts: Sequence[Readout], rows: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        """float32 [number of logits] for each readout, read at hidden row `rows[i]`.

        Raises ValueError for a score without a head.
        """
        wanted: dict[Readout, list[int]] = {}
        weighed: dict[torch.dtype, list[int]] = {}
        for index, readout in enumerate(readouts):
            wanted.setdefault(readout, []).append(index)
            if readout.mass:
                weighed.setdefault(self._rounding(readout), []).append(index)
        found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(readouts)
        for readout, indices in wanted.items():
            values = self._read(_taken(hidden_QH, rows, indices), readout).cpu().numpy()
            for index, value in zip(indices, values, strict=True):
                found[index] = value
        # Once for all label sets: it reads the whole vocabulary, and a request may have 254.
        for rounding, indices in weighed.items():
            masses = self.vocabulary.mass(_taken(hidden_QH, rows, indices), rounding).cpu().numpy()
            for index, mass in zip(indices, masses, strict=True):
                found[index] = np.concatenate([found[index], mass])
        return found

    def _read(self, hidden_QH: Tensor, readout: Readout) -> Tensor:
        """[Q, L]."""
        if readout.label_ids is not None:
            logits_QL = dot(hidden_QH, self.vocabulary.rows(readout.label_ids))
            return logits_QL.to(self._rounding(readout)).float()
        if self.score is None:
            raise ValueError("a score is asked for, but the checkpoint has no scoring head")
        return dot(hidden_QH, self.score.weight.view(1, -1)) + self.score.bias

    def _rounding(self, readout: Readout) -> torch.dtype:
        return self.dtype if readout.rounded else torch.float32


def _taken(hidden_QH: Tensor, rows: Sequence[int], indices: Sequence[int]) -> Tensor:
    """float32 [len(indices), H]: the hidden row of each readout."""
    at = torch.tensor([rows[i] for i in indices])
    if hidden_QH.is_cuda:  # from pinned memory, or the copy would wait for the pass
        at = at.pin_memory().to(hidden_QH.device, non_blocking=True)
    return hidden_QH[at].float()


def dot(x_QH: Tensor, y_LH: Tensor) -> Tensor:
    """[Q, L] of x · y in FP32, halves added to halves: one order of sums for any Q, any device."""
    most = max(1, MOST_PRODUCTS // y_LH.numel())
    return torch.cat([_halve(part[:, None] * y_LH) for part in x_QH.split(most)])


def log_sum_exp(x_QL: Tensor) -> Tensor:
    """[Q, 1] in FP32, in the order of `dot`: a library's sum picks one by the number of rows."""
    most_Q1 = x_QL.amax(1, keepdim=True)
    return most_Q1 + _halve((x_QL - most_Q1).exp())[:, None].log()


def _halve(terms_QLH: Tensor) -> Tensor:
    width = terms_QLH.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        terms_QLH[..., : width - half] += terms_QLH[..., half:width]
        width = half
    return terms_QLH[..., 0]
