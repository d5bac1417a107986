"""List the families and geometries that can be loaded, or say what a model folder holds."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from importlib import import_module
from typing import Any

from adjudge.commands.table import table
from adjudge.families import FAMILIES
from adjudge.origins import add_flags, resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="FOLDER", help="model folder"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser, ["engine"], only=["base", "adapter"])


def run(arguments: argparse.Namespace) -> int:
    config = resolve(vars(arguments), os.environ).engine
    if config.model is None:
        listed = {"families": _families(), "geometries": _geometries()}
        print(json.dumps(listed, indent=2) if arguments.json else _tables(listed))
        return 0
    from adjudge.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(config.model, adapter=config.adapter, base=config.base)
    card, geometry = asdict(checkpoint.card), asdict(checkpoint.text_config)
    use = {"adapter": checkpoint.weights.adapter_use}
    if arguments.json:
        print(json.dumps({"card": card, **use, "text_config": geometry}, indent=2))
    else:
        shown = (*card.items(), *use.items(), *geometry.items())
        rows = [(name, _text(value)) for name, value in shown]
        print(table(["field", "value"], rows))
    return 0


def _tables(listed: dict[str, list[dict[str, Any]]]) -> str:
    return "\n\n".join(
        table(list(rows[0]), [tuple(row.values()) for row in rows]) for rows in listed.values()
    )


def _families() -> list[dict[str, Any]]:
    summaries = {
        name: (import_module(place.partition(":")[0]).__doc__ or "").partition("\n")[0]
        for name, place in FAMILIES.items()
    }
    return [{"family": name, "what": summary} for name, summary in summaries.items()]


def _geometries() -> list[dict[str, Any]]:
    from adjudge.checkpoint.text_config import GEOMETRIES

    return [
        {
            "geometry": name,
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "vocabulary": config.vocab_size,
            "max_positions": config.max_position_embeddings,
        }
        for name, config in GEOMETRIES.items()
    ]


def _text(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) > 4:
        return f"{', '.join(map(str, value[:4]))}, … ({len(value)})"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
