"""List the families and geometries that can be loaded, or say what a model folder holds."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from typing import Any

from adjudge.commands.family_rows import FamilyRow, family_rows
from adjudge.commands.table import table
from adjudge.families import family_class
from adjudge.families.limits import limit_facts
from adjudge.origins import add_flags, resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="FOLDER", help="model folder"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser, ["engine"], only=["base", "adapter", "max_prompt_tokens", "max_batch_tokens"])


def run(arguments: argparse.Namespace) -> int:
    config = resolve(vars(arguments), os.environ).engine
    if config.model is None:
        families, geometries = family_rows(), _geometries()
        if arguments.json:
            listed = {"families": [row.facts() for row in families], "geometries": geometries}
            print(json.dumps(listed, indent=2))
        else:
            print("\n\n".join(map(_table, (*_families(families), geometries))))
        return 0
    from adjudge.checkpoint import open_checkpoint
    from adjudge.compiler import Compiler

    checkpoint = open_checkpoint(config.model, adapter=config.adapter, base=config.base)
    in_force = Compiler.of_checkpoint(checkpoint, config).family.limits
    card, geometry = asdict(checkpoint.card), asdict(checkpoint.text_config)
    use = {"adapter": checkpoint.weights.adapter_use}
    own = family_class(checkpoint.card.family).limits_for(checkpoint.card)
    limits = limit_facts(in_force, own)
    if arguments.json:
        print(
            json.dumps({"card": card, **use, "limits": limits, "text_config": geometry}, indent=2)
        )
    else:
        del card["max_prompt_tokens"]  # it is the family's, which stands among the limits
        shown = (*card.items(), *use.items(), *limits.items(), *geometry.items())
        rows = [(name, _text(value)) for name, value in shown]
        print(table(["field", "value"], rows))
    return 0


def _table(rows: list[dict[str, Any]]) -> str:
    return table(list(rows[0]), [tuple(row.values()) for row in rows])


def _families(rows: list[FamilyRow]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What each family takes, and where it is released."""
    limits = [
        {
            "family": row.name,
            "answers": row.answers,
            "options": row.options,
            "levels": row.levels,
            "questions": row.limits.max_questions,
            "tokens a prompt": row.limits.max_prompt_tokens,
            "adapter": row.about.adapter,
        }
        for row in rows
    ]
    releases = [
        {
            "family": row.name,
            "release": release.name,
            "geometry": release.geometry,
            "needs the base": release.base or "-",
        }
        for row in rows
        for release in row.about.releases
    ]
    return limits, releases


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
