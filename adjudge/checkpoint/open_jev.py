"""Open-Jev on disk: the package beside its base model, and the merged interchange export."""

from __future__ import annotations

from pathlib import Path

from adjudge.checkpoint.base_folder import check_revision, snapshot_revision, tokenizer_file
from adjudge.checkpoint.contents import Checkpoint
from adjudge.checkpoint.head_file import head_from_numbers, read_torch_head
from adjudge.checkpoint.json_file import Fields
from adjudge.checkpoint.peft_adapter import open_peft_adapter
from adjudge.checkpoint.safetensors_file import open_shards
from adjudge.checkpoint.tensor_names import text_tensors
from adjudge.checkpoint.text_config import TextConfig
from adjudge.checkpoint.weights import FolderWeights
from adjudge.errors import CheckpointError
from adjudge.families import ModelCard
from adjudge.families.open_jev import MAX_PROMPT_TOKENS, METHOD

MERGED_FORMAT = "open-jev-text-merged/1"
MERGED_FILE = "open_jev_export.json"
CHAT_PREFIX = "<|im_start|>user\n"
CHAT_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
PACKAGES = {
    "Qwen/Qwen3.5-2B": "ZefanCai/Open-Jev-2B",
    "Qwen/Qwen3.5-9B": "ZefanCai/Open-Jev-9B",
    "Qwen/Qwen3.8-27B": "ZefanCai/Open-Jev-27B-v1.1",
}
"""Base id -> the id of the Open-Jev package made for it, which the files do not say."""


def package_folder(folder: Path) -> Path | None:
    """Where the Open-Jev package is: in the folder, its `checkpoint` or `package/checkpoint`."""
    places = (folder, folder / "checkpoint", folder / "package" / "checkpoint")
    return next((place for place in places if (place / "model.json").is_file()), None)


def card(
    *, model_id: str, base_revision: str, revision: str | None, temperature: float, max_length: int
) -> ModelCard:
    """The card of an Open-Jev checkpoint; known bases give it the package's own name."""
    name = PACKAGES.get(model_id, "open-jev")
    aliases = dict.fromkeys(("open-jev", model_id, name, name.lower()))
    return ModelCard(
        name=name,
        family="open_jev",
        aliases=tuple(alias for alias in aliases if alias != name),
        base=model_id,
        base_revision=base_revision,
        revision=revision,
        max_prompt_tokens=max_length,
        calibration={"temperature": temperature},
    )


def open_package(folder: Path, base: Path | None, *, merged: bool) -> Checkpoint:
    """The package in `folder` over a base model folder. Raises CheckpointError."""
    fields = Fields.of(folder / "model.json")
    fields.only("method", METHOD)
    model_id, base_revision = fields.string("model_id"), fields.string("revision")
    max_length = fields.integer("max_length", 1, MAX_PROMPT_TOKENS)
    if base is None:
        raise CheckpointError(
            f"{folder}: an Open-Jev package without its base model; give the folder of "
            f"{model_id} at revision {base_revision} as the base"
        )
    check_revision(base, base_revision, fields.where)
    config = TextConfig.of(base)
    adapter = open_peft_adapter(folder / "adapter", text_tensors(config))
    if adapter.rank != fields.integer("lora_rank", 1, 1024):
        fields.refuse("lora_rank", f"{adapter.rank}, the rank of the adapter")
    weights = FolderWeights(open_shards(base), config, adapter=adapter, merged=merged)
    return Checkpoint(
        card=card(
            model_id=model_id,
            base_revision=base_revision,
            revision=snapshot_revision(folder),
            temperature=Fields.of(folder / "temperature.json").positive("temperature"),
            max_length=max_length,
        ),
        text_config=config,
        weights=weights,
        head=read_torch_head(folder / "head.pt", config.hidden_size),
        tokenizer_path=tokenizer_file(base),
    )


def open_merged(folder: Path) -> Checkpoint:
    """The merged interchange export: a Transformers folder and `open_jev_export.json`."""
    fields = Fields.of(folder / MERGED_FILE)
    fields.only("format", MERGED_FORMAT)
    fields.only("chat_prefix", CHAT_PREFIX)
    fields.only("chat_suffix", CHAT_SUFFIX)
    config = TextConfig.of(folder)
    return Checkpoint(
        card=card(
            model_id=fields.string("model_id"),
            base_revision=fields.string("base_revision"),
            revision=fields.optional_string("checkpoint_revision"),
            temperature=fields.positive("temperature"),
            max_length=fields.integer("max_length", 1, MAX_PROMPT_TOKENS),
        ),
        text_config=config,
        weights=FolderWeights(open_shards(folder), config),
        head=head_from_numbers(
            fields.where,
            fields.numbers("head_weight", config.hidden_size),
            fields.number("head_bias"),
        ),
        tokenizer_path=tokenizer_file(folder),
    )
