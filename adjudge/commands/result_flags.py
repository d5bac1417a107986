"""The flags of commands that measure something: where their result goes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def add_result_flags(parser: argparse._ActionsContainer) -> None:
    """parser: the whole or a group of it."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--out", type=file_to_write, metavar="FILE", help="write the result as JSON"
    )


def file_to_write(text: str) -> Path:
    """A flag's file, refused before the work whose result it is to hold: its folder must exist."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written; name a file in a folder that exists"
        )
    return path
