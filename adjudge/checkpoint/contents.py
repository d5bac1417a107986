"""What a loaded checkpoint is: a card, a geometry, a source of weights, perhaps a scoring head.

Weights have canonical names: those of spec `qwen3_5` without `model.language_model.` or `model.`
(`embed_tokens.weight`, `layers.0.mlp.gate_proj.weight`, …, `lm_head.weight` when untied).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from adjudge.checkpoint.text_config import TextConfig
from adjudge.families import ModelCard

AdapterUse = Literal["merged", "unmerged", "none"]


@dataclass(frozen=True, slots=True)
class Head:
    """A scoring head: score = weight · hidden + bias. float32 [hidden_size] and float32 []."""

    weight: Tensor
    bias: Tensor


class Lora(NamedTuple):
    """A low-rank delta of a weight [N, K]: W + scale · B·A. A float32 [rank, K], B [N, rank]."""

    a: Tensor
    b: Tensor
    scale: float


class WeightSource(Protocol):
    """Weights by canonical name, each read once, every one accounted for.

    Every tensor is rounded to the source's `precision` before it is cast to the dtype asked for:
    the reference pipelines load a BF16 model wholly in BF16, so `A_log`, which base shards store
    in FP32, is rounded to BF16 even for an FP32 engine.
    """

    @property
    def precision(self) -> torch.dtype:
        """The dtype of the checkpoint's embedding: bfloat16, or float32."""
        ...

    def names(self) -> set[str]:
        """Canonical names of the text model's tensors in this source."""
        ...

    @property
    def adapter_use(self) -> AdapterUse:
        """What became of the adapter: `none` where the source has none apart from its weights."""
        ...

    @property
    def delta_bytes(self) -> int:
        """Bytes of the deltas that are kept apart, in FP32."""
        ...

    def deltas(self) -> set[str]:
        """Canonical names of the weights whose LoRA is kept apart, so that `lora` gives it."""
        ...

    def exact_dtype(self, name: str) -> torch.dtype:
        """The dtype that holds a tensor as `read(…, exact=True)` gives it: the stored one, or
        float32 where a LoRA is merged in."""
        ...

    def read(
        self, name: str, *, device: torch.device | str, dtype: torch.dtype, exact: bool = False
    ) -> Tensor:
        """One tensor, finite, on the device; a LoRA is already merged in when merging was asked.

        exact: not rounded to `precision` first, as label rows are. Raises CheckpointError naming
        file and key.
        """
        ...

    def rows(self, name: str, ids: Sequence[int], *, device: torch.device | str) -> Tensor:
        """Some rows of a matrix, float32 [len(ids), K], with a LoRA added and nothing rounded.

        For label rows. It may be called any number of times, and does not count as a read.
        """
        ...

    def lora(self, name: str) -> Lora | None:
        """The delta of this weight when the adapter is kept unmerged, on the CPU; else None."""
        ...

    def finish(self, consumed: set[str], ignored: Mapping[str, str]) -> None:
        """Ends a load. consumed: names read; ignored: name prefix -> why it is not needed.

        Raises CheckpointError if a tensor was neither read nor ignored, or was read twice.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint, opened: headers are read and checked, tensors not yet.

    tokenizer_path: a tokenizer.json, or None when the checkpoint brings none (random weights).
    """

    card: ModelCard
    text_config: TextConfig
    weights: WeightSource
    head: Head | None
    tokenizer_path: Path | None
