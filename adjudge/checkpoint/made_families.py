"""Small random checkpoints of the families that read label rows, as `label_rows` opens them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from adjudge.checkpoint.export import write_json
from adjudge.checkpoint.label_rows import SLOTS
from adjudge.checkpoint.made_base import Made, write_adapter
from adjudge.checkpoint.made_calibration import made_calibration

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
DELTA = ("in_proj_qkv", "in_proj_z", "out_proj")
DELTA_GATES = ("in_proj_a", "in_proj_b")


def _write_cua_s1(folder: Path, made: Made) -> None:
    write_adapter(folder / "text", made, (*ATTENTION, *MLP), 16, 32, prefix="model.")


def _write_decider(folder: Path, made: Made) -> None:
    described = {"version": "made", "layout": "plain", "isolated_levels": True}
    calibration = made_calibration("decider", folder / "tokenizer.json")
    write_json(folder / "decider_config.json", {"temperature": 1.145, **calibration, **described})


def _write_jemm(folder: Path, made: Made) -> None:
    targets = (*ATTENTION, *DELTA, *DELTA_GATES, *MLP)
    write_adapter(folder, made, targets, 16, 32, prefix="model.language_model.")
    calibration = made_calibration("jemm", folder / "tokenizer.json")
    write_json(folder / "decision_config.json", calibration | {"threshold": 0.98})


def _write_jev_vl(folder: Path, made: Made) -> None:
    adapter = folder / "adapter_vllm"
    targets = (*ATTENTION, *DELTA, *MLP, "lm_head")
    write_adapter(adapter, made, targets, 32, 64, prefix="model.language_model.")
    calibration = made_calibration("jev_vl", folder / "tokenizer.json")
    head = {
        "verbalizer_ids": calibration["verbalizer_ids"],
        "bias": calibration["biases"],
        "slots": {"num_slots": len(calibration["biases"]), "ranges": SLOTS},
    }
    write_json(adapter / "decision_head.json", head)
    write_json(folder / "calibration.json", {"per_kind": calibration["temperatures"]})


WRITERS: dict[str, Callable[[Path, Made], None]] = {
    "cua_s1": _write_cua_s1,
    "decider": _write_decider,
    "jemm": _write_jemm,
    "jev_vl": _write_jev_vl,
}
"""Family -> what it adds to the folder of a base model."""
