"""A small base model with random weights, as model hubs hold one: text, vision and draft parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adjudge.checkpoint.base_folder import RANDOM_KEY
from adjudge.checkpoint.contents import Lora
from adjudge.checkpoint.export import adapter_tensors, write_json, write_tensors
from adjudge.checkpoint.safetensors_writer import write_sharded
from adjudge.checkpoint.synthetic import RandomWeights, generator_of
from adjudge.checkpoint.text_config import FULL, LINEAR, TextConfig
from adjudge.checkpoint.vocab import Kind, write_tokenizer

ROWS: dict[Kind, int] = {"qwen": 248_320, "bytes": 1024}
"""Rows of the embedding for each tokenizer: its ids, rounded up."""

KEPT_FLOAT32 = ("linear_attn.A_log", "linear_attn.norm.weight")
"""What base shards store in FP32 among BF16 tensors."""

SMALL = TextConfig(
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    layer_types=(LINEAR, LINEAR, LINEAR, FULL),
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=32,
    linear_value_head_dim=16,
    linear_conv_kernel_dim=4,
    rms_norm_eps=1e-6,
    rope_theta=1e7,
    partial_rotary_factor=0.25,
    mrope_section=(11, 11, 10),
    vocab_size=1024,
    tie_word_embeddings=True,
    max_position_embeddings=262_144,
)
"""One round of layers with key dim ≠ value dim and two heads of each kind to a group."""


def small_config(tokenizer: Kind, **changes: Any) -> TextConfig:
    """SMALL with the rows that the tokenizer needs, and changed fields."""
    return replace(SMALL, vocab_size=ROWS[tokenizer], **changes)


class Made:
    """Random tensors by canonical name, in the dtypes that a base stores them in."""

    def __init__(self, config: TextConfig, *, seed: int, dtype: torch.dtype) -> None:
        self.config = config
        self.seed = seed
        self.dtype = dtype
        self.weights = RandomWeights(config, seed=seed)

    def stored_dtype(self, name: str) -> torch.dtype:
        return torch.float32 if name.endswith(KEPT_FLOAT32) else self.dtype

    def tensor(self, name: str) -> Tensor:
        """The tensor as stored; those kept in FP32 have values that BF16 cannot hold."""
        drawn = self.weights.read(name, device="cpu", dtype=self.stored_dtype(name))
        return drawn * 1.001 if name.endswith(KEPT_FLOAT32) else drawn

    def deltas(self, targets: Iterable[str], rank: int, scale: float) -> dict[str, Lora]:
        """A delta for every matrix whose module name ends in a target, 0.3 times its size."""
        endings = tuple(f".{target}.weight" for target in targets)
        made: dict[str, Lora] = {}
        for name, shape in self.weights.shapes.items():
            if f".{name}".endswith(endings):
                rows, width = shape
                a = torch.empty(rank, width).normal_(
                    0.0, width**-0.5, generator=generator_of(self.seed, f"{name}.A", "cpu")
                )
                std = 0.3 * self.weights.std(name) * (width / rank) ** 0.5 / scale
                b = torch.empty(rows, rank).normal_(
                    0.0, std, generator=generator_of(self.seed, f"{name}.B", "cpu")
                )
                made[name] = Lora(a, b, scale)
        return made


def write_base(folder: Path, made: Made, tokenizer: Kind, *, shard_bytes: int) -> None:
    """config.json, tokenizer.json and the weights, with a few vision and draft tensors."""
    config = made.config
    extra = {
        "model.visual.patch_embed.proj.weight": torch.ones(8, 3, dtype=made.dtype),
        "mtp.norm.weight": torch.ones(config.hidden_size, dtype=made.dtype),
    }
    names = {base_key(name): name for name in made.weights.shapes}
    plan = {
        key: (made.stored_dtype(name), made.weights.shapes[name]) for key, name in names.items()
    }
    plan |= {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in extra.items()}

    def tensor(key: str) -> Tensor:
        return extra[key] if key in extra else made.tensor(names[key])

    write_sharded(folder, plan, tensor, shard_bytes=shard_bytes)
    write_json(folder / "config.json", base_config(config, made.dtype))
    write_tokenizer(folder, tokenizer)


def base_key(name: str) -> str:
    """The key of a canonical name in a base with a vision part."""
    return name if name.startswith("lm_head.") else f"model.language_model.{name}"


def base_config(config: TextConfig, dtype: torch.dtype) -> Mapping[str, Any]:
    """config.json of a base with a vision part, as far as a text model reads it."""
    text = config.to_json()
    del text["architectures"]
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": 248_056,
        RANDOM_KEY: True,
        "tie_word_embeddings": text.pop("tie_word_embeddings"),
        "text_config": text | {"dtype": str(dtype).removeprefix("torch.")},
        "vision_config": {"model_type": "qwen3_5_vision"},
    }


def write_adapter(
    folder: Path, made: Made, targets: Sequence[str], rank: int, alpha: int, *, prefix: str
) -> None:
    """A PEFT adapter folder. prefix: between PEFT's own and the canonical name of a layer, which
    tells what the adapter was attached to."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"base_model.model.{'' if key.startswith('lm_head.') else prefix}{key}": tensor
        for key, tensor in adapter_tensors(made.deltas(targets, rank, alpha / rank)).items()
    }
    write_tensors(folder / "adapter_model.safetensors", tensors)
    described = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
    }
    write_json(folder / "adapter_config.json", described)
