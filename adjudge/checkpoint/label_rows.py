"""The families that read label rows, on disk: Cua-S1, Decider, JEMM and JEV-VL.

    Cua-S1   a base model, and a PEFT adapter in `text/`
    Decider  a plain model and `decider_config.json`
    JEMM     a base model, and a PEFT adapter beside `decision_config.json`
    JEV-VL   a base model, `calibration.json`, and `adapter_vllm/`: a PEFT adapter that also
             changes lm_head, and `decision_head.json`

The files do not name their release; a checkpoint of the released geometry is taken for it, any
other answers to the family's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adjudge.checkpoint.adapter import AdapterMode, is_merged
from adjudge.checkpoint.base_folder import downloaded_revision, needed_base, tokenizer_file
from adjudge.checkpoint.contents import Checkpoint
from adjudge.checkpoint.json_file import Fields
from adjudge.checkpoint.peft_adapter import open_peft_adapter
from adjudge.checkpoint.safetensors_file import open_shards
from adjudge.checkpoint.tensor_names import text_tensors
from adjudge.checkpoint.text_config import GEOMETRIES, TextConfig
from adjudge.checkpoint.weights import FolderWeights
from adjudge.families import ModelCard

KINDS = ("choice", "noul", "score")
SLOTS = {"noul": [0, 2], "score": [2, 8], "choice": [8, 24]}
NUM_SLOTS = 24

ADAPTER_CONFIG = "adapter_config.json"
DECIDER_OPTIONS: dict[str, object] = {
    "layout": "plain",
    "neutralize_none": False,
    "schema_first": False,
    "max_state_tokens": 32_768,
    "max_options": 255,
}
"""What the family computes, besides isolated_levels; a checkpoint with another value is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What a family's files leave unsaid. base: of an adapter that is published alone."""

    name: str
    geometry: str
    max_prompt_tokens: int
    base: str | None = None
    base_revision: str | None = None


RELEASES = {
    "cua_s1": Release(
        name="cua-ai/cua-s1-4b-0.2",
        geometry="4b",
        max_prompt_tokens=16_384,
        base="Qwen/Qwen3.5-4B",
        base_revision="851bf6e806efd8d0a36b00ddf55e13ccb7b8cd0a",
    ),
    "decider": Release(name="Mapika/decider-2b", geometry="2b", max_prompt_tokens=36_864),
    "jemm": Release(
        name="MaestroYan/JEMM",
        geometry="27b",
        max_prompt_tokens=8192,
        base="Qwen/Qwen3.8-27B",
        base_revision="1d4bf0f2ff6012fd82039f2fa52739d0dd7c60c0",
    ),
    "jev_vl": Release(name="autotrust/JEV-27B-VL", geometry="27b", max_prompt_tokens=16_384),
}


def open_cua_s1(folder: Path, base: Path | None, mode: AdapterMode) -> Checkpoint:
    """folder: the one that holds the adapter. Raises CheckpointError, like the others here."""
    base = _base("cua_s1", folder, base)
    return _checkpoint("cua_s1", base, mode, {}, adapter=folder, described=folder / ADAPTER_CONFIG)


def open_jemm(folder: Path, base: Path | None, mode: AdapterMode) -> Checkpoint:
    path = folder / "decision_config.json"
    calibration = {"temperature": Fields.of(path).positive("temperature")}
    base = _base("jemm", folder, base)
    return _checkpoint("jemm", base, mode, calibration, adapter=folder, described=path)


def open_jev_vl(folder: Path, mode: AdapterMode) -> Checkpoint:
    adapter = folder / "adapter_vllm"
    path = folder / "calibration.json"
    temperatures = Fields.of(path).inner("per_kind")
    head = Fields.of(adapter / "decision_head.json")
    head.inner("slots").only("ranges", SLOTS)
    calibration = {
        "temperatures": {kind: temperatures.positive(kind) for kind in KINDS},
        "verbalizer_ids": head.integers("verbalizer_ids", NUM_SLOTS),
        "biases": head.numbers("bias", NUM_SLOTS),
    }
    return _checkpoint("jev_vl", folder, mode, calibration, adapter=adapter, described=path)


def open_decider(folder: Path) -> Checkpoint:
    path = folder / "decider_config.json"
    fields = Fields.of(path)
    fields.only("isolated_levels", True)
    for key, accepted in DECIDER_OPTIONS.items():
        fields.only(key, None, accepted)
    calibration = {"temperature_by_type": {kind: _temperature(fields, kind) for kind in KINDS}}
    return _checkpoint("decider", folder, "auto", calibration, adapter=None, described=path)


def _temperature(fields: Fields, kind: str) -> float:
    """Decider's temperature of a kind; `temperature` speaks for kinds without one of their own."""
    if fields.values.get("temperature_by_type") is not None:
        by_type = fields.inner("temperature_by_type")
        if kind in by_type.values:
            return by_type.positive(kind)
    return fields.positive("temperature")


def _base(family: str, folder: Path, base: Path | None) -> Path:
    release = RELEASES[family]
    return needed_base(base, folder, f"{release.base}", f"{release.base_revision}")


def _checkpoint(
    family: str,
    base: Path,
    mode: AdapterMode,
    calibration: Mapping[str, Any],
    *,
    adapter: Path | None,
    described: Path,
) -> Checkpoint:
    """described: the file whose download tells the revision of what was trained."""
    release = RELEASES[family]
    config = TextConfig.of(base)
    released = config == GEOMETRIES[release.geometry]
    deltas = None if adapter is None else open_peft_adapter(adapter, text_tensors(config))
    return Checkpoint(
        card=ModelCard(
            name=release.name if released else family.replace("_", "-"),
            family=family,
            aliases=(release.name.rpartition("/")[2],) if released else (),
            base=release.base if released else None,
            base_revision=release.base_revision if released else None,
            revision=downloaded_revision(described),
            max_prompt_tokens=release.max_prompt_tokens,
            calibration=calibration,
        ),
        text_config=config,
        weights=FolderWeights(
            open_shards(base),
            config,
            adapter=deltas,
            merged=is_merged(mode, family),
            needs_lm_head=True,
        ),
        head=None,
        tokenizer_path=tokenizer_file(base),
    )
