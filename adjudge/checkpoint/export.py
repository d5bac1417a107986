"""Our own export: a Transformers folder, the head and the adapter in safetensors, one card.

    config.json  tokenizer.json
    model.safetensors (or shards and their index); an LM head without a scoring head stays as exact
                            as its label rows: float32 where a LoRA is merged into it
    adjudge.json            {format: "adjudge-checkpoint/1", card, adapter: {rank, scale} or null,
                            head: is there a scoring head}
    head.safetensors        weight [1, hidden], bias [1], float32; only with a scoring head
    adapter.safetensors     NAME.lora_A, NAME.lora_B, float32; only when the adapter is kept apart

Everything the folder needs is in it: it never points at a base model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from torch import Tensor

from adjudge.checkpoint.adapter import Adapter, is_merged
from adjudge.checkpoint.atomic_folder import atomic_folder
from adjudge.checkpoint.base_folder import tokenizer_file
from adjudge.checkpoint.contents import Checkpoint, Lora
from adjudge.checkpoint.head_file import HEAD_FILE, head_tensors, read_head
from adjudge.checkpoint.json_file import Fields
from adjudge.checkpoint.safetensors_file import SafetensorsFile, open_shards
from adjudge.checkpoint.safetensors_writer import (
    SHARD_BYTES,
    num_bytes,
    write_bytes,
    write_file,
    write_sharded,
)
from adjudge.checkpoint.tensor_names import text_tensors
from adjudge.checkpoint.text_config import TextConfig
from adjudge.checkpoint.weights import FolderWeights
from adjudge.config import AdapterMode
from adjudge.errors import CheckpointError
from adjudge.families import FAMILIES, ModelCard
from adjudge.progress import Progress

CARD_FILE = "adjudge.json"
FORMAT = "adjudge-checkpoint/1"
ADAPTER_FILE = "adapter.safetensors"
LM_HEAD = "lm_head.weight"


def write_export(
    checkpoint: Checkpoint,
    folder: Path | str,
    progress: Progress = lambda what, done, total: None,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Writes a checkpoint as our own export and returns its folder, which must not exist.

    Weights are streamed, one tensor in memory at a time; an unmerged adapter stays unmerged.
    progress: told bytes done, of all bytes; shard_bytes: most bytes of a weight file. Raises
    CheckpointError, and then leaves nothing.
    """
    target = Path(folder)
    with atomic_folder(target) as partial:
        _write(checkpoint, partial, progress, shard_bytes)
    return target


def _write(checkpoint: Checkpoint, folder: Path, progress: Progress, shard_bytes: int) -> None:
    weights, config = checkpoint.weights, checkpoint.text_config
    shapes = {name: s for name, s in text_tensors(config).items() if name in weights.names()}
    names = {stored_key(name): name for name in shapes}
    exact = {LM_HEAD} & set(shapes) if checkpoint.head is None else set()
    plan = {
        key: (weights.exact_dtype(name) if name in exact else weights.precision, shapes[name])
        for key, name in names.items()
    }
    deltas = {name: delta for name in shapes if (delta := weights.lora(name)) is not None}
    total = sum(num_bytes(*described) for described in plan.values())
    _check_space(folder, total)
    done = 0

    def wrote(size: int) -> None:
        nonlocal done
        done += size
        progress("writing weights, bytes", done, total)

    def tensor(key: str) -> Tensor:
        name = names[key]
        return weights.read(name, device="cpu", dtype=plan[key][0], exact=name in exact)

    write_sharded(folder, plan, tensor, shard_bytes=shard_bytes, wrote=wrote)
    weights.finish(set(shapes), {})
    if deltas:
        write_tensors(folder / ADAPTER_FILE, adapter_tensors(deltas))
    if checkpoint.head is not None:
        write_tensors(folder / HEAD_FILE, head_tensors(checkpoint.head))
    if checkpoint.tokenizer_path is not None:
        write_bytes(folder / "tokenizer.json", checkpoint.tokenizer_path.read_bytes())
    architecture = "Qwen3_5ForCausalLM" if LM_HEAD in shapes else "Qwen3_5TextModel"
    dtype = str(weights.precision).removeprefix("torch.")
    config_json = config.to_json() | {"architectures": [architecture], "dtype": dtype}
    write_json(folder / "config.json", config_json)
    lora = next(iter(deltas.values()), None)
    described = None if lora is None else {"rank": lora.a.shape[0], "scale": lora.scale}
    card = {
        "format": FORMAT,
        "card": asdict(checkpoint.card),
        "adapter": described,
        "head": checkpoint.head is not None,
    }
    write_json(folder / CARD_FILE, card)


def open_export(folder: Path, mode: AdapterMode) -> Checkpoint:
    """A folder that `write_export` wrote. Raises CheckpointError."""
    fields = Fields.of(folder / CARD_FILE)
    fields.only("format", FORMAT)
    card = _card(fields.inner("card"))
    config = TextConfig.of(folder)
    has_head = fields.boolean("head")
    for path, told in ((HEAD_FILE, has_head), (ADAPTER_FILE, fields.values.get("adapter"))):
        if not told and (folder / path).exists():
            raise CheckpointError(f"{folder / path}: there, but {fields.where} says there is none")
    adapter = None
    if fields.values.get("adapter") is not None:
        described = fields.inner("adapter")
        adapter = Adapter(
            SafetensorsFile(folder / ADAPTER_FILE),
            text_tensors(config),
            rank=described.integer("rank", 1, 1024),
            scale=described.positive("scale"),
        )
    return Checkpoint(
        card=card,
        text_config=config,
        weights=FolderWeights(
            open_shards(folder),
            config,
            adapter=adapter,
            merged=is_merged(mode, card.family),
            needs_lm_head=not has_head,
        ),
        head=read_head(folder / HEAD_FILE, config.hidden_size) if has_head else None,
        tokenizer_path=tokenizer_file(folder),
    )


def _card(fields: Fields) -> ModelCard:
    """The card in adjudge.json: the fields of ModelCard, no more and no less."""
    expected = {field.name for field in dataclass_fields(ModelCard)}
    for key in sorted(fields.values.keys() ^ expected):
        fields.refuse(key, f"the fields {', '.join(sorted(expected))}")
    family = fields.string("family")
    if family not in FAMILIES:
        fields.refuse("family", " or ".join(FAMILIES))
    return ModelCard(
        name=fields.string("name"),
        family=family,
        aliases=fields.strings("aliases"),
        base=fields.optional_string("base"),
        base_revision=fields.optional_string("base_revision"),
        revision=fields.optional_string("revision"),
        max_prompt_tokens=fields.integer("max_prompt_tokens", 1, 1 << 20),
        random_weights=fields.boolean("random_weights"),
        calibration=fields.inner("calibration").values,
    )


def adapter_tensors(deltas: Mapping[str, Lora]) -> dict[str, Tensor]:
    """The keys and tensors of an adapter file, as Adapter reads them."""
    made: dict[str, Tensor] = {}
    for name, delta in deltas.items():
        module = name.removesuffix(".weight")
        made[f"{module}.lora_A.weight"] = delta.a
        made[f"{module}.lora_B.weight"] = delta.b
    return made


def stored_key(name: str) -> str:
    """The key of a canonical name in a Transformers causal LM without a vision part."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A small safetensors file of tensors at hand. Raises OSError."""
    plan = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    write_file(path, plan, tensors.__getitem__)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """A JSON file, synced. Raises OSError."""
    write_bytes(path, (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())


def _check_space(folder: Path, needed_bytes: int) -> None:
    """Refuses before the work what cannot fit; the disk may still fill later."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise CheckpointError(
            f"{folder.parent}: {free} bytes free, the export needs {needed_bytes}; free space and "
            "try again"
        )
