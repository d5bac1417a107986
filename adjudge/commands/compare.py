"""Compare two results of the same requests: decisions flipped, probabilities moved, latency.

  adjudge compare before.json after.json --max-flips 0 --max-latency-ratio 1.05

A and B are files of `adjudge bench --out`, or JSON lines {"id", "answers"} or {"id", "response"}
recorded from any server. Exit codes: 0 compared; 1 past a given limit; 2 cannot be compared.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from adjudge.commands.table import table
from adjudge.proof.comparison import Comparison, Limits, compare, exceeded
from adjudge.proof.recorded import read_comparable
from adjudge.proof.spread import Percentiles

SHOWN_FLIPS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A", help="the first result")
    parser.add_argument("b", type=Path, metavar="B", help="the result compared with it")
    parser.add_argument("--max-flips", type=int, metavar="N", help="decisions that may change")
    parser.add_argument(
        "--max-probability-drift", type=float, metavar="P", help="of any candidate, absolute"
    )
    parser.add_argument("--max-score-drift", type=float, metavar="LEVELS", help="of any score")
    parser.add_argument(
        "--max-latency-ratio", type=float, metavar="R", help="B ÷ A, of any load or layout"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    found = compare(read_comparable(arguments.a), read_comparable(arguments.b))
    limits = Limits(
        flips=arguments.max_flips,
        probability=arguments.max_probability_drift,
        score=arguments.max_score_drift,
        latency_ratio=arguments.max_latency_ratio,
    )
    past = exceeded(found, limits)
    if arguments.json:
        print(msgspec.json.encode({**msgspec.to_builtins(found), "exceeded": past}).decode())
    else:
        print(comparison_text(found))
    for sentence in past:
        print(sentence, file=sys.stderr)
    return 1 if past else 0


def comparison_text(found: Comparison) -> str:
    """Drift, flips, and speeds, as far as there are any."""
    parts = []
    for name, missing in (("A", found.only_a), ("B", found.only_b)):
        if missing:
            parts.append(f"only in {name}: {len(missing)} requests, the first {missing[0]!r}")
    if found.drift is not None:
        drift = found.drift
        rows = [("probability", *_row(drift.probability))]
        if drift.score is not None:
            rows.append(("score, levels", *_row(drift.score)))
        parts.append(f"{len(drift.flipped)} of {drift.decisions:,} decisions flipped")
        parts += drift.flipped[:SHOWN_FLIPS]
        if len(drift.flipped) > SHOWN_FLIPS:
            parts.append(f"… and {len(drift.flipped) - SHOWN_FLIPS} more")
        parts.append(table(["drift", "p50", "p90", "p99", "largest"], rows, decimals=6))
    if found.speeds:
        speeds = [
            (one.name, one.a_ms, one.b_ms, one.ratio,
             None if one.interval is None else one.interval.low,
             None if one.interval is None else one.interval.high)
            for one in found.speeds
        ]  # fmt: skip
        headers = ["mean ms", "A", "B", "B ÷ A", "95 % from", "to"]
        parts.append(table(headers, speeds, decimals=3))
    return "\n".join(parts)


def _row(spread: Percentiles) -> tuple[float, float, float, float]:
    return spread.p50, spread.p90, spread.p99, spread.most
