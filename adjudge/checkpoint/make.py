"""Small random checkpoints in the layouts of released ones, for tests, the demo and benches.

Not trained, but alive: every weight, delta and head value changes the answers. On the command
line: scripts/make_checkpoint.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from adjudge.checkpoint.adapter import merge
from adjudge.checkpoint.atomic_folder import atomic_folder
from adjudge.checkpoint.contents import Lora
from adjudge.checkpoint.export import (
    adapter_tensors,
    stored_key,
    write_export,
    write_json,
    write_tensors,
)
from adjudge.checkpoint.head_file import head_tensors
from adjudge.checkpoint.made_base import ROWS, Made, base_key, small_config, write_base
from adjudge.checkpoint.open_jev import CHAT_PREFIX, CHAT_SUFFIX, MERGED_FILE, MERGED_FORMAT
from adjudge.checkpoint.opening import open_checkpoint
from adjudge.checkpoint.safetensors_writer import SHARD_BYTES, write_sharded
from adjudge.checkpoint.synthetic import random_head
from adjudge.checkpoint.text_config import GEOMETRIES, TextConfig
from adjudge.checkpoint.vocab import Kind, write_tokenizer
from adjudge.errors import CheckpointError
from adjudge.families.open_jev import METHOD

Layout = Literal["package", "merged", "adjudge"]

MODEL_ID, REVISION = "adjudge/random-base", "0" * 40
TEMPERATURE = 1.8969118766347646
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "out_proj")
RANK, ALPHA = 8, 16


def write_checkpoint(
    folder: Path | str,
    *,
    layout: Layout = "package",
    tokenizer: Kind = "bytes",
    config: TextConfig | None = None,
    seed: int = 0,
    max_length: int = 4096,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Writes a random Open-Jev checkpoint to a new folder and returns the folder.

    layout: `package` is a base model with `package/checkpoint/` beside its weights, `merged` the
    interchange export, `adjudge` our own. config: the geometry, `small_config(tokenizer)` if not
    given; its vocabulary must hold the tokenizer's ids. dtype: of the base's weights. Equal
    arguments but for the layout give checkpoints with equal merged weights. Raises
    CheckpointError.
    """
    made = Made(config or small_config(tokenizer), seed=seed, dtype=dtype)
    target = Path(folder)
    if layout == "adjudge":
        with tempfile.TemporaryDirectory() as scratch:
            package = Path(scratch) / "package"
            _write(package, "package", made, tokenizer, max_length, shard_bytes)
            opened = open_checkpoint(package)
            card = replace(opened.card, random_weights=True)
            return write_export(replace(opened, card=card), target, shard_bytes=shard_bytes)
    _write(target, layout, made, tokenizer, max_length, shard_bytes)
    return target


def _write(
    target: Path, layout: Layout, made: Made, tokenizer: Kind, max_length: int, shard_bytes: int
) -> None:
    with atomic_folder(target) as folder:
        if layout == "merged":
            _write_merged(folder, made, max_length, shard_bytes)
            write_tokenizer(folder, tokenizer)
        else:
            write_base(folder, made, tokenizer, shard_bytes=shard_bytes)
            _write_package(folder / "package" / "checkpoint", made, max_length)


def _write_package(folder: Path, made: Made, max_length: int) -> None:
    """The package: what was trained, and how to read it."""
    adapter = folder / "adapter"
    adapter.mkdir(parents=True)
    write_adapter(adapter, made.deltas(TARGETS, RANK, ALPHA / RANK), TARGETS, RANK, ALPHA)
    head = random_head(made.config.hidden_size, seed=made.seed)
    torch.save(head_tensors(head), folder / "head.pt")
    described = {
        "model_id": MODEL_ID,
        "revision": REVISION,
        "max_length": max_length,
        "lora_rank": RANK,
        "method": METHOD,
    }
    write_json(folder / "model.json", described)
    split = {"temperature": TEMPERATURE, "split": "none", "n": 0, "ids_sha256": "0" * 64}
    write_json(folder / "temperature.json", split)


def _write_merged(folder: Path, made: Made, max_length: int, shard_bytes: int) -> None:
    """The interchange export: the same weights, already merged."""
    deltas = made.deltas(TARGETS, RANK, ALPHA / RANK)
    names = {stored_key(name): name for name in made.weights.shapes}
    plan = {key: (made.dtype, made.weights.shapes[name]) for key, name in names.items()}

    def tensor(key: str) -> Tensor:
        name = names[key]
        stored = made.tensor(name)
        return merge(stored, deltas[name], made.dtype) if name in deltas else stored.to(made.dtype)

    write_sharded(folder, plan, tensor, shard_bytes=shard_bytes)
    write_json(folder / "config.json", made.config.to_json())
    head = random_head(made.config.hidden_size, seed=made.seed)
    described = {
        "format": MERGED_FORMAT,
        "model_id": MODEL_ID,
        "base_revision": REVISION,
        "checkpoint_revision": None,
        "temperature": TEMPERATURE,
        "max_length": max_length,
        "chat_prefix": CHAT_PREFIX,
        "chat_suffix": CHAT_SUFFIX,
        "head_weight": head.weight.tolist(),
        "head_bias": head.bias.item(),
    }
    write_json(folder / MERGED_FILE, described)


def write_adapter(
    folder: Path, deltas: Mapping[str, Lora], targets: Sequence[str], rank: int, alpha: int
) -> None:
    """A PEFT adapter folder for a base with a vision part."""
    tensors = {
        f"base_model.model.{base_key(key)}": tensor
        for key, tensor in adapter_tensors(deltas).items()
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


def geometry(name: str, tokenizer: Kind, num_layers: int | None) -> TextConfig:
    """`small`, or a released size; its vocabulary is the tokenizer's. Raises CheckpointError."""
    if name == "small":
        config = small_config(tokenizer)
    else:
        config = replace(GEOMETRIES[name], vocab_size=ROWS[tokenizer])
    return config if num_layers is None else config.with_layers(num_layers)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of scripts/make_checkpoint. Exit status 0, or 1 with a message."""
    parser = argparse.ArgumentParser(
        prog="scripts/make_checkpoint",
        description="Writes a small random checkpoint in the layout of a released one.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to write; must be new")
    parser.add_argument("--tokenizer", choices=get_args(Kind), default="bytes")
    parser.add_argument("--layout", choices=get_args(Layout), default="package")
    parser.add_argument("--geometry", choices=["small", *GEOMETRIES], default="small")
    parser.add_argument("--layers", type=int, metavar="N", help="keep only the first N layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-length", type=int, default=4096, metavar="TOKENS")
    parser.add_argument("--shard-bytes", type=int, default=SHARD_BYTES, metavar="BYTES")
    given = parser.parse_args(arguments)
    try:
        write_checkpoint(
            given.folder,
            layout=given.layout,
            tokenizer=given.tokenizer,
            config=geometry(given.geometry, given.tokenizer, given.layers),
            seed=given.seed,
            max_length=given.max_length,
            shard_bytes=given.shard_bytes,
        )
    except CheckpointError as error:
        sys.stderr.write(f"make_checkpoint: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
