"""Small random models with the released sizes' head ratios, here and in transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adjudge.checkpoint.contents import Lora
from adjudge.checkpoint.made_base import SMALL
from adjudge.checkpoint.synthetic import RandomWeights
from adjudge.checkpoint.text_config import TextConfig
from adjudge.device_tables import to_device
from adjudge.forest import plan
from adjudge.layout import layout
from adjudge.models.qwen3_5 import Qwen3_5
from adjudge.ops.attention import SLOTS
from adjudge.ops.tables import Tables

CPU = torch.device("cpu")
Ids = NDArray[np.int32]

LIKE_2B = replace(
    SMALL,
    num_hidden_layers=8,
    layer_types=SMALL.layer_types * 2,
    hidden_size=96,
    intermediate_size=176,
    num_key_value_heads=1,
    head_dim=64,
    linear_num_key_heads=4,
    linear_key_head_dim=16,
    mrope_section=(3, 3, 2),
    vocab_size=512,
    max_position_embeddings=4096,
)
LIKE_9B = replace(
    LIKE_2B,
    num_attention_heads=8,
    num_key_value_heads=2,
    linear_num_key_heads=2,
    linear_key_head_dim=32,
)
LIKE_27B = replace(
    LIKE_2B,
    num_attention_heads=6,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_value_head_dim=32,
    tie_word_embeddings=False,
)
RATIOS = {"2b": LIKE_2B, "9b": LIKE_9B, "27b": LIKE_27B}


class Adapted(RandomWeights):
    """Random weights with low-rank deltas, merged or kept apart."""

    def __init__(self, config: TextConfig, deltas: Mapping[str, Lora], *, merged: bool) -> None:
        super().__init__(config, seed=0)
        self.deltas = deltas
        self.merged = merged

    def read(self, name: str, *, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        tensor = super().read(name, device=device, dtype=torch.float32)
        delta = self.deltas.get(name)
        if delta is not None and self.merged:
            tensor = tensor + delta.scale * (delta.b @ delta.a)
        return tensor.to(dtype)

    def lora(self, name: str) -> Lora | None:
        return None if self.merged else self.deltas.get(name)


@cache
def ours(config: TextConfig, dtype: torch.dtype) -> Qwen3_5:
    return Qwen3_5.load(config, RandomWeights(config, seed=0), device=CPU, dtype=dtype)


@cache
def theirs(config: TextConfig, dtype: torch.dtype) -> torch.nn.Module:
    """The same weights in transformers."""
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel

    model = Qwen3_5TextModel(Qwen3_5TextConfig.from_dict(config.to_json()))
    weights = RandomWeights(config, seed=0)
    names = weights.names() - {"lm_head.weight"}
    model.load_state_dict(
        {name: weights.read(name, device="cpu", dtype=torch.float32) for name in names}
    )
    return model.to(dtype).eval()


def their_hidden(model: torch.nn.Module, ids: Ids, positions: Tensor | None = None) -> Tensor:
    """[tokens, H]. positions: [3, tokens] where the axes differ."""
    with torch.inference_mode():
        found: Tensor = model(
            torch.from_numpy(ids.astype(np.int64))[None],
            position_ids=None if positions is None else positions[:, None],
            use_cache=False,
        ).last_hidden_state
    return found[0]


def tables_of(prompts: Sequence[Ids]) -> Tables:
    return to_device(layout(plan(prompts), height=SLOTS), CPU)


def hidden(model: Qwen3_5, prompts: Sequence[Ids]) -> list[Tensor]:
    """[H] of each prompt, all read in one pass."""
    forest = plan(prompts)
    hidden_QH = model.forward(to_device(layout(forest, height=SLOTS), CPU))
    return [hidden_QH[index] for index in forest.prompt_readout]


def token_ids(seed: int, count: int, vocab_size: int = LIKE_2B.vocab_size) -> Ids:
    return np.random.default_rng(seed).integers(0, vocab_size, count).astype(np.int32)


def distance(found: Tensor, expected: Tensor) -> float:
    """Relative L2."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())
