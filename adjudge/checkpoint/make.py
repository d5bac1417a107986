"""Small random checkpoints in the layouts of released ones, for tests, the demo and benches.

Not trained, but alive: every weight, delta and head value changes the answers. On the command
line: scripts/make_checkpoint.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from adjudge.checkpoint.adapter import merge
from adjudge.checkpoint.atomic_folder import atomic_folder
from adjudge.checkpoint.base_folder import RANDOM_KEY
from adjudge.checkpoint.export import write_export, write_json
from adjudge.checkpoint.head_file import head_tensors
from adjudge.checkpoint.made_base import ROWS, Made, small_config, write_adapter, write_base
from adjudge.checkpoint.made_calibration import OPEN_JEV_TEMPERATURE
from adjudge.checkpoint.made_families import WRITERS
from adjudge.checkpoint.open_jev import CHAT_PREFIX, MERGED_FILE, MERGED_FORMAT
from adjudge.checkpoint.opening import open_checkpoint
from adjudge.checkpoint.safetensors_writer import SHARD_BYTES, write_sharded
from adjudge.checkpoint.synthetic import random_head
from adjudge.checkpoint.text_config import GEOMETRIES, TextConfig
from adjudge.checkpoint.vocab import Kind, write_tokenizer
from adjudge.errors import CheckpointError
from adjudge.families import FAMILIES, family_class
from adjudge.families.chat import ANSWER_TURN
from adjudge.families.open_jev import MAX_PROMPT_TOKENS, METHOD

Layout = Literal["package", "merged", "adjudge"]

MODEL_ID, REVISION = "adjudge/random-base", "0" * 40
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "out_proj")
RANK, ALPHA = 8, 16


def write_checkpoint(
    folder: Path | str,
    *,
    family: str = "open_jev",
    layout: Layout = "package",
    tokenizer: Kind = "bytes",
    config: TextConfig | None = None,
    seed: int = 0,
    max_length: int = 4096,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Writes a random checkpoint of a family to a new folder and returns the folder.

    layout: `package` is how the family is released, with the base model's files beside its own;
    `adjudge` our export of that; `merged` the interchange export, of Open-Jev only. config: the
    geometry, `small_config(tokenizer)` if not given, with an LM head where the family has one;
    its vocabulary must hold the tokenizer's ids. max_length: of Open-Jev's prompts. dtype: of
    the base's weights. Equal arguments but for the layout give equal merged weights. Raises
    CheckpointError.
    """
    if family not in FAMILIES or (layout == "merged" and family != "open_jev"):
        raise CheckpointError(f"no layout {layout!r} of a family {family!r}")
    if not 1 <= max_length <= MAX_PROMPT_TOKENS:
        raise CheckpointError(f"max_length is {max_length}; it is 1 to {MAX_PROMPT_TOKENS} tokens")
    if shard_bytes < 1:
        raise CheckpointError(f"shard_bytes is {shard_bytes}; it is at least 1")
    config = config or geometry("small", tokenizer, family)
    made = Made(config, seed=seed, dtype=dtype)
    target = Path(folder)
    if layout == "adjudge":
        with tempfile.TemporaryDirectory() as scratch:
            package = Path(scratch) / "package"
            _write(package, family, "package", made, tokenizer, max_length, shard_bytes)
            return write_export(open_checkpoint(package), target, shard_bytes=shard_bytes)
    _write(target, family, layout, made, tokenizer, max_length, shard_bytes)
    return target


def _write(
    target: Path,
    family: str,
    layout: Layout,
    made: Made,
    tokenizer: Kind,
    max_length: int,
    shard_bytes: int,
) -> None:
    with atomic_folder(target) as folder:
        if layout == "merged":
            _write_merged(folder, made, max_length, shard_bytes)
            write_tokenizer(folder, tokenizer)
            return
        write_base(folder, made, tokenizer, shard_bytes=shard_bytes)
        if family == "open_jev":
            _write_package(folder / "package" / "checkpoint", made, max_length)
        else:
            WRITERS[family](folder, made)


def _write_package(folder: Path, made: Made, max_length: int) -> None:
    """The package: what was trained, and how to read it."""
    write_adapter(folder / "adapter", made, TARGETS, RANK, ALPHA, prefix="")
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
    split = {"temperature": OPEN_JEV_TEMPERATURE, "split": "none", "n": 0, "ids_sha256": "0" * 64}
    write_json(folder / "temperature.json", split)


def _write_merged(folder: Path, made: Made, max_length: int, shard_bytes: int) -> None:
    """The interchange export: the same weights, already merged, saved from the text model alone,
    so that keys have no prefix and there is no LM head."""
    deltas = made.deltas(TARGETS, RANK, ALPHA / RANK)
    shapes = {n: shape for n, shape in made.weights.shapes.items() if n != "lm_head.weight"}
    plan = {name: (made.dtype, shape) for name, shape in shapes.items()}

    def tensor(name: str) -> Tensor:
        stored = made.tensor(name)
        return merge(stored, deltas[name], made.dtype) if name in deltas else stored.to(made.dtype)

    write_sharded(folder, plan, tensor, shard_bytes=shard_bytes)
    write_json(folder / "config.json", made.config.to_json() | {RANDOM_KEY: True})
    head = random_head(made.config.hidden_size, seed=made.seed)
    described = {
        "format": MERGED_FORMAT,
        "model_id": MODEL_ID,
        "base_revision": REVISION,
        "checkpoint_revision": None,
        "temperature": OPEN_JEV_TEMPERATURE,
        "max_length": max_length,
        "chat_prefix": CHAT_PREFIX,
        "chat_suffix": ANSWER_TURN,
        "head_weight": head.weight.tolist(),
        "head_bias": head.bias.item(),
    }
    write_json(folder / MERGED_FILE, described)


def geometry(
    name: str, tokenizer: Kind, family: str = "open_jev", *, num_layers: int | None = None
) -> TextConfig:
    """`small` or a released size, for a tokenizer and a family. Raises CheckpointError."""
    if name == "small":
        config = small_config(tokenizer, tie_word_embeddings=is_tied(family))
    else:
        config = replace(GEOMETRIES[name], vocab_size=ROWS[tokenizer])
    return config if num_layers is None else config.with_layers(num_layers)


def is_tied(family: str) -> bool:
    """Whether a family's base lacks an LM head of its own, as that of its first release does."""
    return GEOMETRIES[family_class(family).about.releases[0].geometry].tie_word_embeddings


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of scripts/make_checkpoint. Exit status 0, or 1 with a message."""
    parser = argparse.ArgumentParser(
        prog="scripts/make_checkpoint",
        description="Writes a small random checkpoint in the layout of a released one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to write; must be new")
    parser.add_argument(
        "--family", choices=list(FAMILIES), default="open_jev", help="whose layout and adapter"
    )
    parser.add_argument(
        "--tokenizer",
        choices=get_args(Kind),
        default="bytes",
        help="qwen: the released vocabulary; bytes: a token a byte, for a few megabytes in all",
    )
    parser.add_argument(
        "--layout",
        choices=get_args(Layout),
        default="package",
        help="package: as it is released; adjudge: as `convert` writes it; merged: the "
        "interchange export, of open_jev only",
    )
    parser.add_argument(
        "--geometry", choices=["small", *GEOMETRIES], default="small", help="size of the base"
    )
    parser.add_argument("--layers", type=int, metavar="N", help="keep only the first N layers")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument(
        "--max-length", type=int, default=4096, metavar="TOKENS", help="of an open_jev prompt"
    )
    parser.add_argument(
        "--shard-bytes", type=int, default=SHARD_BYTES, metavar="BYTES", help="of a weights file"
    )
    given = parser.parse_args(arguments)
    try:
        write_checkpoint(
            given.folder,
            family=given.family,
            layout=given.layout,
            tokenizer=given.tokenizer,
            config=geometry(given.geometry, given.tokenizer, given.family, num_layers=given.layers),
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
