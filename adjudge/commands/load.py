"""An engine for a command: progress on stderr, a demo checkpoint when no model is named."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adjudge.config import EngineConfig
from adjudge.demo import demo_folder
from adjudge.errors import CheckpointError, ConfigError
from adjudge.progress import Reporter

if TYPE_CHECKING:
    from adjudge.engine import Engine


def check_folder(config: EngineConfig) -> None:
    """That the model folder is there, before anything else is looked at. Raises CheckpointError."""
    if config.model is not None and not Path(config.model).is_dir():
        raise CheckpointError(f"{config.model}: there is no such model folder")


def with_model(config: EngineConfig) -> EngineConfig:
    """The config with the demo checkpoint filled in when it names neither model nor geometry."""
    if config.model is None and config.random is None:
        folder = demo_folder(Reporter())
        print(
            f"no model named: using the demo checkpoint in {folder}. Its weights are random, so "
            "its answers mean nothing.",
            file=sys.stderr,
        )
        return replace(config, model=str(folder))
    return config


def fitted(
    configs: Mapping[str, EngineConfig], bases: Mapping[str, str]
) -> dict[str, EngineConfig]:
    """Several models' configurations, each with what applies to it of the settings that all share:
    `base` where the layout takes one, `adapter` where there is one.

    bases: name -> folder of the base of that model alone. Raises ConfigError for a setting that
    applies to none, CheckpointError for a folder without a layout.
    """
    from adjudge.checkpoint.opening import open_checkpoint, takes_base

    if unknown := sorted(bases.keys() - configs.keys()):
        raise ConfigError(
            f"--base-of names {', '.join(unknown)}, and no model is called that; the names are "
            f"{', '.join(filter(None, configs)) or 'none'}"
        )
    shared = next(iter(configs.values()))
    if len(configs) == 1 and not bases:
        return dict(configs)
    found = dict(configs)
    if shared.base is not None or bases:
        takers = {
            name
            for name, config in configs.items()
            if name not in bases and shared.base is not None and takes_base(f"{config.model}")
        }
        if shared.base is not None and not takers:
            raise ConfigError(f"no model here takes the base {shared.base}; leave it out")
        for name, config in configs.items():
            base = bases.get(name, shared.base if name in takers else None)
            found[name] = replace(config, base=base)
    if shared.adapter == "unmerged":
        kept = {
            name
            for name, config in found.items()
            if open_checkpoint(f"{config.model}", base=config.base).weights.adapter_use != "none"
        }
        if not kept:
            raise ConfigError("no model here has an adapter to keep unmerged; leave it out")
        for name in found.keys() - kept:
            found[name] = replace(found[name], adapter="auto")
    return found


def load_engine(config: EngineConfig) -> Engine:
    """A loaded engine. Brings torch with it."""
    from adjudge.engine import Engine

    config = with_model(config)
    return Engine.load(config.model, config, progress=Reporter())


def load_engines(configs: Mapping[str, EngineConfig]) -> dict[str, Engine]:
    """Several engines on one device. Raises DeviceError first if they do not fit together."""
    from adjudge.engine import check_memory

    check_memory(configs)
    return {name: load_engine(config) for name, config in configs.items()}
