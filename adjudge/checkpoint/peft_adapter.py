"""A PEFT adapter folder: `adapter_config.json` beside `adapter_model.safetensors`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from adjudge.checkpoint.adapter import Adapter
from adjudge.checkpoint.json_file import Fields
from adjudge.checkpoint.safetensors_file import SafetensorsFile
from adjudge.checkpoint.tensor_names import PREFIXES
from adjudge.errors import CheckpointError

NEUTRAL_FIELDS: dict[str, tuple[object, ...]] = {
    "use_dora": (None, False),
    "use_rslora": (None, False),
    "fan_in_fan_out": (None, False),
    "lora_bias": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layers_to_transform": (None, []),
    "exclude_modules": (None, []),
    "trainable_token_indices": (None, []),
    "target_parameters": (None, []),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (None, False),
    "use_bdlora": (None, {}),
    "arrow_config": (None, {}),
    "monteclora_config": (None, {}),
    "kasa_config": (None, {}),
    "corda_config": (None, {}),
    "lora_ga_config": (None, {}),
    "loftq_config": (None, {}),
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
}
"""PEFT options and the values under which the delta is scale · B·A on the base as it is; with any
other value the arithmetic or the base differs, and the adapter is refused."""


def open_peft_adapter(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Adapter:
    """Reads configuration and headers. shapes: canonical name -> shape of the model's weights.

    Raises CheckpointError when a tensor is unknown, missing, misshapen or mistyped, or an option
    of PEFT changes the arithmetic.
    """
    fields = Fields.of(folder / "adapter_config.json")
    fields.only("peft_type", "LORA")
    for key, accepted in NEUTRAL_FIELDS.items():
        fields.only(key, *accepted)
    rank = fields.integer("r", 1, 1024)
    adapter = Adapter(
        SafetensorsFile(folder / "adapter_model.safetensors"),
        shapes,
        rank=rank,
        scale=fields.positive("lora_alpha") / rank,
    )
    _check_targets(adapter, fields, shapes)
    return adapter


def _check_targets(adapter: Adapter, fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every matrix that `target_modules` names has a pair, and no other."""
    matrices = {name for name, shape in shapes.items() if len(shape) == 2}
    wanted = {name for name in matrices if _is_target(fields, name.removesuffix(".weight"))}
    if not wanted:
        fields.refuse("target_modules", "names of modules of the text model")
    for name in sorted(wanted - adapter.names()):
        raise CheckpointError(f"{adapter.file.path}: the LoRA pair of {name} is missing")
    for name in sorted(adapter.names() - wanted):
        raise CheckpointError(
            f"{adapter.file.path}: {adapter.key(name)}: not among target_modules of {fields.where}"
        )


def _is_target(fields: Fields, module: str) -> bool:
    """PEFT's rule: a list holds endings of module names, a string is a whole-name pattern."""
    targets = fields.values.get("target_modules")
    if isinstance(targets, list) and all(isinstance(target, str) for target in targets):
        return any(f".{module}".endswith(f".{target}") for target in targets)
    if isinstance(targets, str):
        try:
            return any(re.fullmatch(targets, prefix + module) for prefix in (*PREFIXES, ""))
        except re.error as error:
            fields.refuse("target_modules", f"a regular expression ({error})")
    return fields.refuse("target_modules", "a list of module names, or a pattern")
