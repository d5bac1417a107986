"""An engine for a command: progress on stderr, a demo checkpoint when no model is named."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from adjudge.config import EngineConfig
from adjudge.demo import demo_folder
from adjudge.progress import Reporter

if TYPE_CHECKING:
    from adjudge.engine import Engine


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
