"""Open-Jev on disk: the package beside its base model, and the merged interchange export."""

from __future__ import annotations

from pathlib import Path

from adjudge.checkpoint.adapter import is_merged
from adjudge.checkpoint.base_folder import downloaded_revision, needed_base, tokenizer_file
from adjudge.checkpoint.contents import Checkpoint
from adjudge.checkpoint.head_file import head_from_numbers, read_torch_head
from adjudge.checkpoint.json_file import Fields
from adjudge.checkpoint.peft_adapter import open_peft_adapter
from adjudge.checkpoint.safetensors_file import open_shards
from adjudge.checkpoint.tensor_names import text_tensors
from adjudge.checkpoint.text_config import TextConfig
from adjudge.checkpoint.weights import FolderWeights
from adjudge.config import AdapterMode
from adjudge.families import ModelCard
from adjudge.families.chat import ANSWER_TURN
from adjudge.families.open_jev import MAX_PROMPT_TOKENS, METHOD, OpenJev

FAMILY = "open_jev"
MERGED_FORMAT = "open-jev-text-merged/1"
MERGED_FILE = "open_jev_export.json"
CHAT_PREFIX = "<|im_start|>user\n"
PACKAGES = {release.base: release.name for release in OpenJev.about.releases}
"""Base id -> the id of the Open-Jev package made for it, which the files do not say."""


def card(
    *, model_id: str, base_revision: str, revision: str | None, temperature: float, max_length: int
) -> ModelCard:
    """The card of an Open-Jev checkpoint; known bases give it the package's own name."""
    name = PACKAGES.get(model_id, "open-jev")
    aliases = dict.fromkeys(("open-jev", model_id, name, name.lower()))
    return ModelCard(
        name=name,
        family=FAMILY,
        aliases=tuple(alias for alias in aliases if alias != name),
        base=model_id,
        base_revision=base_revision,
        revision=revision,
        max_prompt_tokens=max_length,
        calibration={"temperature": temperature},
    )


def open_package(folder: Path, base: Path | None, mode: AdapterMode) -> Checkpoint:
    """The package in `folder` over a base model folder. Raises CheckpointError."""
    fields = Fields.of(folder / "model.json")
    fields.only("method", METHOD)
    model_id, base_revision = fields.string("model_id"), fields.string("revision")
    max_length = fields.integer("max_length", 1, MAX_PROMPT_TOKENS)
    base = needed_base(base, folder, model_id, base_revision)
    config = TextConfig.of(base)
    adapter = open_peft_adapter(folder / "adapter", text_tensors(config))
    if adapter.rank != fields.integer("lora_rank", 1, 1024):
        fields.refuse("lora_rank", f"{adapter.rank}, the rank of the adapter")
    weights = FolderWeights(
        open_shards(base), config, adapter=adapter, merged=is_merged(mode, FAMILY)
    )
    return Checkpoint(
        card=card(
            model_id=model_id,
            base_revision=base_revision,
            revision=downloaded_revision(folder / "model.json"),
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
    fields.only("chat_suffix", ANSWER_TURN)
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
