"""Compare the engine with transformers on the same weights: hidden states, logits, answers.

  adjudge parity FOLDER --requests requests.jsonl

Every prompt runs through the engine, shared and packed as in service, and alone through
transformers (with PEFT where the adapter is kept unmerged); the distance is shown by percentiles
beside the spread that correct BF16 implementations were reported to have. Exit codes: 0 compared;
1 past a given limit; 2 cannot be compared.
"""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from adjudge.commands.bench_tables import evidence_text
from adjudge.commands.load import load_engine, with_model
from adjudge.commands.measured_model import model_facts
from adjudge.commands.result_flags import add_result_flags
from adjudge.commands.table import table
from adjudge.commands.workload_flags import add_workload_flags, workload_from
from adjudge.origins import add_flags, resolve
from adjudge.progress import Reporter
from adjudge.proof.result import Parity, ParityResult, write_result
from adjudge.proof.spread import Percentiles

REPORTED = (
    "reported of correct BF16 ports of Open-Jev-9B against the reference, 2,157 candidates: hidden "
    "p50 0.0096, p99 0.023, largest 0.063; probability largest 0.104; 2 of 318 decisions changed"
)
"""What to expect of two correct implementations."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="FOLDER", help="model folder"
    )
    add_workload_flags(parser, flag="--requests")
    parser.add_argument(
        "--float32", action="store_true", help="run transformers in float32 too, to compare both"
    )
    parser.add_argument("--max-flips", type=int, metavar="N", help="decisions that may change")
    parser.add_argument(
        "--max-hidden-distance", type=float, metavar="L2", help="relative, of any hidden state"
    )
    parser.add_argument(
        "--max-probability-drift", type=float, metavar="P", help="of any candidate, absolute"
    )
    add_result_flags(parser)
    add_flags(parser, ["engine"], leave_out=["model"])


def run(arguments: argparse.Namespace) -> int:
    config = with_model(resolve(vars(arguments), os.environ).engine)
    workload = workload_from(arguments)
    from adjudge.proof.parity import parity

    result = parity(
        config,
        workload,
        lambda: load_engine(config),
        Reporter(),
        with_float32=arguments.float32,
        model=model_facts(config),
    )
    if arguments.out is not None:
        write_result(arguments.out, result)
    print(msgspec.json.encode(result).decode() if arguments.json else parity_text(result))
    past = _exceeded(result.pairs[0], arguments)
    for sentence in past:
        print(sentence, file=sys.stderr)
    return 1 if past else 0


def parity_text(result: ParityResult) -> str:
    """A table for each pair of implementations, what to expect, and the evidence."""
    sent = f"{result.workload}, {result.requests} requests, {result.prompts:,} prompts"
    parts = [f"{result.model}, {result.dtype}: {sent}"]
    for pair in result.pairs:
        rows = [
            ("hidden, relative L2", *_row(pair.hidden)),
            ("logit", *_row(pair.logit)),
            ("probability", *_row(pair.drift.probability)),
        ]
        if pair.drift.score is not None:
            rows.append(("score, levels", *_row(pair.drift.score)))
        flipped = len(pair.drift.flipped)
        rows_text = table([pair.name, "p50", "p90", "p99", "largest"], rows, decimals=6)
        flips = "".join(f"\n  {flip}" for flip in pair.drift.flipped)
        parts.append(f"{rows_text}\n{flipped} of {pair.drift.decisions:,} decisions changed{flips}")
    return "\n\n".join([*parts, REPORTED, evidence_text(result.evidence)])


def _row(spread: Percentiles) -> tuple[float, float, float, float]:
    return spread.p50, spread.p90, spread.p99, spread.most


def _exceeded(pair: Parity, arguments: argparse.Namespace) -> list[str]:
    """The given limits that the engine is past, each as a sentence."""
    checked = [
        ("the number of changed decisions", len(pair.drift.flipped), arguments.max_flips),
        ("the largest hidden distance", pair.hidden.most, arguments.max_hidden_distance),
        ("the largest probability drift", pair.drift.probability.most,
         arguments.max_probability_drift),
    ]  # fmt: skip
    return [
        f"{what} is {value:.6g}, and at most {most:.6g} is allowed"
        for what, value, most in checked
        if most is not None and value > most
    ]
