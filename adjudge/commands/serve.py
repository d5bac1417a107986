"""Answer requests over HTTP: POST /v1/systemone and what belongs to it.

  adjudge serve FOLDER                    one model
  adjudge serve fast=FOLDER deep=FOLDER   several; a request's `model` picks, the first is default
  adjudge serve a=FOLDER b=FOLDER --base FOLDER   a base goes to each model that takes one

The port opens once a warm-up request has passed through the whole path. Without a model folder a
demo checkpoint with random weights is served. docs/operate.md tells of signals and exit codes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adjudge.commands.load import fitted, load_engine, load_engines, with_model
from adjudge.commands.table import table
from adjudge.config import EngineConfig
from adjudge.errors import ConfigError
from adjudge.families.limits import ALWAYS_ACCEPTED
from adjudge.origins import add_flags, resolve

_NAMED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="[NAME=]FOLDER", help="model folders")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check settings and model folders, print limits, memory and buckets, and stop",
    )
    parser.add_argument(
        "--base-of",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="base of one of several models, in place of --base; give it again for more",
    )
    parser.add_argument("--json", action="store_true", help="print a dry run's findings as JSON")
    add_flags(parser, leave_out=["model"])


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), os.environ)
    configs = named_configs(arguments.models, settings.engine)
    configs = fitted(configs, _bases(arguments.base_of))
    if arguments.dry_run:
        from adjudge.dry_run import examine

        found = examine(
            {name: with_model(config) for name, config in configs.items()}, settings.service
        )
        print(json.dumps(found, indent=2) if arguments.json else _text(found))
        return 0
    from adjudge.service import serve

    if list(configs) == [""]:
        return serve(lambda: load_engine(configs[""]), settings.service)
    return serve(lambda: load_engines(configs), settings.service)


def named_configs(models: Sequence[str], config: EngineConfig) -> dict[str, EngineConfig]:
    """Name -> configuration of each model; "" names a single model without a name of its own.

    Raises ConfigError.
    """
    if not models:
        return {"": config}
    matches = [_NAMED.fullmatch(model) for model in models]
    if len(models) == 1 and matches[0] is None:
        return {"": replace(config, model=models[0])}
    named: dict[str, EngineConfig] = {}
    for model, match in zip(models, matches, strict=True):
        if match is None:
            raise ConfigError(f"{model} has no name; of several models each is NAME=FOLDER")
        name, folder = match.groups()
        if name in ALWAYS_ACCEPTED:
            raise ConfigError(
                f"no model can be called {name}: requests for {' and '.join(ALWAYS_ACCEPTED)} are "
                "answered by the first model. Give it another name"
            )
        if name in named:
            raise ConfigError(f"two models are called {name}; give each a name of its own")
        named[name] = replace(config, model=folder)
    return named


def _bases(words: Sequence[str]) -> dict[str, str]:
    """Name -> folder. Raises ConfigError."""
    bases: dict[str, str] = {}
    for word in words:
        match = _NAMED.fullmatch(word)
        if match is None:
            raise ConfigError(f"--base-of is {word}; it takes NAME=FOLDER")
        name, folder = match.groups()
        if bases.setdefault(name, folder) != folder:
            raise ConfigError(f"--base-of gives {name} two bases; give it one")
    return bases


def _text(found: Mapping[str, Any]) -> str:
    """The findings as a table."""
    rows: list[tuple[str, Any]] = []
    for model in found["models"]:
        rows += [(f"{model['name']}: {key}", _shown(value)) for key, value in model.items()]
    rows += [(key, _shown(value)) for key, value in found["service"].items()]
    return table(["what", "value"], rows)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key} {part}" for key, part in value.items())
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
