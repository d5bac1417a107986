"""Answer requests over HTTP: POST /v1/systemone and what belongs to it.

The port opens once a warm-up request has passed through the whole path. Without a model folder a
demo checkpoint with random weights is served. docs/operate.md tells of signals and exit codes.
"""

from __future__ import annotations

import argparse
import os

from adjudge.commands.load import load_engine
from adjudge.origins import add_flags, resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="FOLDER", help="model folder"
    )
    add_flags(parser, leave_out=["model"])


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), os.environ)
    from adjudge.service import serve

    return serve(lambda: load_engine(settings.engine), settings.service)
