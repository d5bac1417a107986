"""The families that read label rows, on disk: Cua-S1, Decider, JEMM and JEV-VL.

    Cua-S1   a base model, and a PEFT adapter in `text/`
    Decider  a plain model and `decider_config.json`
    JEMM     a base model, and a PEFT adapter beside `decision_config.json`
    JEV-VL   a base model, `calibration.json`, and `adapter_vllm/`: a PEFT adapter that also
             changes lm_head, and `decision_head.json`

The files do not name their release; a checkpoint of a released geometry is taken for the first
release that has it, any other answers to the family's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from adjudge.checkpoint.adapter import is_merged
from adjudge.checkpoint.base_folder import downloaded_revision, needed_base, tokenizer_file
from adjudge.checkpoint.contents import Checkpoint
from adjudge.checkpoint.json_file import Fields
from adjudge.checkpoint.peft_adapter import open_peft_adapter
from adjudge.checkpoint.safetensors_file import open_shards
from adjudge.checkpoint.tensor_names import text_tensors
from adjudge.checkpoint.text_config import GEOMETRIES, TextConfig
from adjudge.checkpoint.weights import FolderWeights
from adjudge.config import AdapterMode
from adjudge.families import ModelCard, family_class
from adjudge.families.about import Release

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
    slots = head.inner("slots")
    slots.only("ranges", SLOTS)
    slots.only("num_slots", None, NUM_SLOTS)
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


def _release(family: str, config: TextConfig) -> Release | None:
    """The first release of a family that has this geometry."""
    releases: tuple[Release, ...] = family_class(family).about.releases
    return next((one for one in releases if GEOMETRIES[one.geometry] == config), None)


def _base(family: str, folder: Path, base: Path | None) -> Path:
    """The base that is given, as the release of its geometry needs it, or else the first does."""
    releases: tuple[Release, ...] = family_class(family).about.releases
    if base is not None and base.is_dir():
        found = _release(family, TextConfig.of(base))
        releases = releases[:1] if found is None else (found,)
    names, revisions = (
        " or ".join(f"{getattr(one, field)}" for one in releases)
        for field in ("base", "base_revision")
    )
    return needed_base(base, folder, names, revisions)


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
    config = TextConfig.of(base)
    release = _release(family, config)
    deltas = None if adapter is None else open_peft_adapter(adapter, text_tensors(config))
    card = ModelCard(
        name=release.name if release else family.replace("_", "-"),
        family=family,
        aliases=(release.name.rpartition("/")[2],) if release else (),
        base=release.base if release else None,
        base_revision=release.base_revision if release else None,
        revision=downloaded_revision(described),
        calibration=calibration,
    )
    limits = family_class(family).limits_for(card)
    return Checkpoint(
        card=replace(card, max_prompt_tokens=limits.max_prompt_tokens),
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
