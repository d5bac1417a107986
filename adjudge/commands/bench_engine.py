"""Time passes of the engine over synthetic layouts, behind checks of their bits.

Without a folder or --random the demo checkpoint is measured. Each layout's whole pass is timed in
turns with its matrix products alone: the ratio says what everything else costs. Checks: the
self-check of this build on this device, and for every layout that its pass gives prompts the bits
that they have alone. With --transformers, that library must agree, and is timed too.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

import msgspec

from adjudge.commands.bench_tables import engine_text, show_gates
from adjudge.commands.load import load_engine, with_model
from adjudge.commands.measured_model import model_facts
from adjudge.commands.result_flags import add_result_flags
from adjudge.errors import ConfigError
from adjudge.origins import add_flags, resolve
from adjudge.progress import Reporter
from adjudge.proof.asked import Asked
from adjudge.proof.layouts import LAYOUTS, Shared
from adjudge.proof.result import write_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="FOLDER", help="model folder"
    )
    parser.add_argument(
        "--layout",
        nargs="+",
        action="extend",
        metavar="P+TxN",
        help="N prompts with P shared and T own tokens, or TxN; or FAMILY:S+QxO, a request of a "
        "state of S tokens and Q choices of O options in that family's prompts; default: "
        + ", ".join(shared.spelling for shared in LAYOUTS),
    )
    parser.add_argument("--repeats", type=int, default=20, help="passes of each (default: 20)")
    parser.add_argument(
        "--transformers", action="store_true", help="compare with the transformers library"
    )
    parser.add_argument("--ops", action="store_true", help="show each layout's time by op")
    add_result_flags(parser)
    add_flags(parser, ["engine"], leave_out=["model"])


def run(arguments: argparse.Namespace) -> int:
    config = with_model(resolve(vars(arguments), os.environ).engine)
    if arguments.repeats < 1:
        raise ConfigError(f"--repeats is {arguments.repeats}; it takes 1 or more")
    layouts = LAYOUTS if arguments.layout is None else tuple(map(_layout, arguments.layout))
    from adjudge.proof.engine_bench import EnginePlan, bench_engine

    # What fails the self-check fails the gate, where it is shown with the others.
    loaded = replace(config, self_check=False)
    plan = EnginePlan(
        config=loaded,
        layouts=layouts,
        repeats=arguments.repeats,
        with_transformers=arguments.transformers,
    )
    outcome = bench_engine(plan, lambda: load_engine(loaded), Reporter(), model=model_facts(config))
    if outcome.result is None:
        show_gates(outcome.gates, sys.stderr)
        return 1
    if arguments.out is not None:
        write_result(arguments.out, outcome.result)
    if arguments.json:
        print(msgspec.json.encode(outcome.result).decode())
    else:
        print(engine_text(outcome.result, with_ops=arguments.ops))
    return 0


def _layout(text: str) -> Shared | Asked:
    return Asked.of(text) if ":" in text else Shared.of(text)
