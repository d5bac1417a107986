"""Write a checkpoint as one folder that needs nothing else: base, adapter and head together.

The folder appears under its name only once it is whole; a full disk or an interruption leaves
nothing half-made.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from adjudge.errors import ConfigError
from adjudge.origins import add_flags, resolve
from adjudge.progress import Reporter


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
    print(f"wrote {checkpoint.card.name} to {arguments.target}")
    return 0
