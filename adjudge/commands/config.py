"""Show every setting, its value, and where the value comes from: a flag, an environment variable,
a file, or the default. Secrets are not shown."""

from __future__ import annotations

import argparse
import json
import os

from adjudge.commands.table import table
from adjudge.origins import add_flags, resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show"], help="what to do")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), os.environ)
    if arguments.json:
        print(
            json.dumps(
                {
                    section: {
                        one.name: {"value": one.shown, "origin": one.origin}
                        for one in settings.values
                        if one.section == section
                    }
                    for section in ("engine", "service")
                },
                indent=2,
            )
        )
    else:
        rows = [
            (f"{one.section}.{one.name}", _text(one.shown), one.origin) for one in settings.values
        ]
        print(table(["setting", "value", "origin"], rows))
    return 0


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
