"""Prove on this device that answers do not depend on the batch, and show every comparison.

On a GPU the mixers' kernels are first held to their references. Then each weight shape's product
runs at many row counts; then prompts packed, shared, reordered, padded and replayed against each
prompt alone, every bit compared. The short check is what `serve` runs at load; --full runs the
whole matrix. Exit codes: 0 all of it holds; 1 not; 2 cannot be loaded.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

import msgspec

from adjudge.commands.bench_tables import evidence_text
from adjudge.commands.load import load_engine, with_model
from adjudge.commands.measured_model import model_facts
from adjudge.commands.result_flags import add_result_flags
from adjudge.commands.table import table
from adjudge.origins import add_flags, resolve
from adjudge.progress import Reporter
from adjudge.proof.result import CheckResult, write_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="FOLDER", help="model folder"
    )
    parser.add_argument("--full", action="store_true", help="more row counts, more passes")
    add_result_flags(parser)
    add_flags(parser, ["engine"], leave_out=["model", "self_check", "allow_inexact"])


def run(arguments: argparse.Namespace) -> int:
    config = with_model(resolve(vars(arguments), os.environ).engine)
    from adjudge.proof.exactness import check_exactness

    engine = load_engine(replace(config, self_check=False))
    try:
        result = check_exactness(
            engine, full=arguments.full, progress=Reporter(), model=model_facts(config)
        )
    finally:
        engine.close()
    if arguments.out is not None:
        write_result(arguments.out, result)
    print(msgspec.json.encode(result).decode() if arguments.json else check_text(result))
    return 0 if all(row.passed for row in result.rows) else 1


def check_text(result: CheckResult) -> str:
    """Every comparison in a row, and the evidence."""
    rows = [
        (row.name, row.shape, "holds" if row.passed else "FAILED", row.detail)
        for row in result.rows
    ]
    title = f"{result.model}, {result.dtype}, {result.seconds:.1f} s"
    compared = table(["compared", "shape or case", "result", "detail"], rows)
    return f"{title}\n\n{compared}\n\n{evidence_text(result.evidence)}"
