"""Measure speed, behind checks of correctness: no figure is shown unless every check passed.

  adjudge bench serve http://127.0.0.1:8000      a running server, ours or another's
  adjudge bench serve FOLDER                     a server of our own, started for the run
  adjudge bench engine --random 9b               passes of the engine, in device time

Exit codes: 0 measured; 1 a check failed; 2 something given cannot be used.
"""

from __future__ import annotations

import argparse
from importlib import import_module

PARTS = {
    "serve": ("adjudge.commands.bench_serve", "a server over HTTP, with whole requests"),
    "engine": ("adjudge.commands.bench_engine", "passes of the engine alone, in device time"),
}
"""Name -> module, one line of help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="|".join(PARTS))
    for name, (module, text) in PARTS.items():
        part = import_module(module)
        part.add_arguments(
            parts.add_parser(
                name,
                help=text,
                description=part.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )


def run(arguments: argparse.Namespace) -> int:
    return int(import_module(PARTS[arguments.part][0]).run(arguments))
