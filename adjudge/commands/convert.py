"""Write a checkpoint as one folder that needs nothing else: base, adapter and head together.

The folder appears under its name only once it is whole; a full disk or an interruption leaves
nothing half-made. A killed run (kill -9) leaves a hidden folder `.NAME.partial` beside it, which a
rerun replaces.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from adjudge.errors import ConfigError
from adjudge.origins import add_flags, resolve
from adjudge.progress import Reporter

if TYPE_CHECKING:
    from adjudge.checkpoint import Checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="FOLDER", help="model folder"
    )
    parser.add_argument("target", type=Path, metavar="TARGET", help="folder to write; must be new")
    add_flags(parser, ["engine"], only=["base", "adapter"])


def run(arguments: argparse.Namespace) -> int:
    config = resolve(vars(arguments), os.environ).engine
    if config.model is None:
        raise ConfigError("no model folder to convert; give adjudge convert FOLDER TARGET")
    from adjudge.checkpoint import open_checkpoint, write_export
    from adjudge.compiler import Compiler

    checkpoint = open_checkpoint(config.model, adapter=config.adapter, base=config.base)
    Compiler.of_checkpoint(checkpoint, config)
    write_export(checkpoint, arguments.target, Reporter())
    print(f"wrote {checkpoint.card.name} to {arguments.target}{_adapter(checkpoint)}")
    return 0


def _adapter(checkpoint: Checkpoint) -> str:
    """What became of the adapter, and how the folder will be served."""
    from adjudge.checkpoint.adapter import is_merged

    use = checkpoint.weights.adapter_use
    if use == "none":
        return ""
    if use == "merged":
        return "; its adapter is merged into the weights"
    if is_merged("auto", checkpoint.card.family):
        return "; its adapter is kept apart, and merged when served unless --adapter is unmerged"
    return "; its adapter is kept apart, and served so unless --adapter is merged"
