"""Load a server with whole requests, check every answer, and only then show times.

The target is a URL, or a model folder (or --random, or nothing for the demo checkpoint) to start a
server for. Closed loops keep --concurrency requests in flight, each in its turn; open loops send
--rate requests a second whatever happens. The clock of a request runs from sending it to its
checked answer. Checks: every request answered, every answer valid, answers byte-equal between all
passes, a question alone = among its siblings. A server that promises no equal bytes is measured
with --allow-inexact.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import msgspec

from adjudge.commands.bench_tables import serve_text, show_gates
from adjudge.commands.load import with_model
from adjudge.commands.measured_model import model_facts
from adjudge.commands.result_flags import add_result_flags, file_to_write
from adjudge.commands.workload_flags import add_workload_flags, workload_from
from adjudge.config import EngineConfig, kinds
from adjudge.errors import ConfigError
from adjudge.origins import add_flags, resolve
from adjudge.progress import Reporter
from adjudge.proof.connection import Target
from adjudge.proof.evidence import machine
from adjudge.proof.load import Mode
from adjudge.proof.own_server import OwnServer
from adjudge.proof.page import serve_page
from adjudge.proof.peaks import peak_of
from adjudge.proof.result import write_result, write_text
from adjudge.proof.serve_bench import ServePlan, bench_serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="URL|FOLDER", help="what is measured")
    add_workload_flags(parser, flag="--workload")
    group = parser.add_argument_group("load")
    group.add_argument(
        "--concurrency", type=int, nargs="+", default=[], metavar="N", help="closed loops"
    )
    group.add_argument(
        "--rate", type=float, nargs="+", default=[], metavar="PER_S", help="open loops"
    )
    group.add_argument("--rounds", type=int, default=3, help="passes over it (default: 3)")
    group.add_argument(
        "--warm-up", type=int, default=64, metavar="N", help="requests before (default: 64)"
    )
    group.add_argument("--timeout-s", type=float, default=120.0, help="of a request (default: 120)")
    group.add_argument("--path", default="/v1/systemone", help="route (default: %(default)s)")
    group = parser.add_argument_group("checks")
    group.add_argument(
        "--tolerance", type=float, default=1e-6, help="of sums and expectations (default: 1e-6)"
    )
    group = parser.add_argument_group("output")
    add_result_flags(group)
    group.add_argument("--html", type=file_to_write, metavar="FILE", help="write a page with plots")
    group.add_argument(
        "--geometry", metavar="SIZE", help="of the served model, for the utilisation: 2b, 9b, …"
    )
    add_flags(parser, only=[*kinds(EngineConfig), "api_key"], leave_out=["model"])


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), os.environ)
    modes = [Mode(concurrency=n) for n in arguments.concurrency]
    modes += [Mode(rate_per_s=rate) for rate in arguments.rate]
    _at_least(1, arguments.concurrency, "--concurrency")
    _at_least(1, [arguments.rounds], "--rounds")
    _at_least(1, [arguments.warm_up], "--warm-up")
    _at_least(1e-3, arguments.rate, "--rate")
    workload = workload_from(arguments)
    keys = settings.service.api_key
    target, engine = arguments.target, settings.engine
    if target is None or "://" not in target:
        engine = with_model(replace(engine, model=target))
    with ExitStack() as stack:
        url, own = target, None
        if target is None or "://" not in target:
            words = _serve_words(engine.model, vars(arguments), keys)
            own = stack.enter_context(OwnServer(words))
            url = own.url
        outcome = bench_serve(
            ServePlan(
                target=Target.of(url, keys[0] if keys else None),
                workload=workload,
                modes=modes or [Mode(concurrency=n) for n in (1, 8)],
                rounds=arguments.rounds,
                warm_up=arguments.warm_up,
                path=arguments.path,
                timeout_s=arguments.timeout_s,
                tolerance=arguments.tolerance,
                allow_inexact=engine.allow_inexact,
                peak_tokens_per_s=_peak_tokens_per_s(arguments, engine),
                model=None if own is None else model_facts(engine),
            ),
            Reporter(),
        )
        memory = None if own is None else own.peak_memory_mib()
    if outcome.result is None:
        show_gates(outcome.gates, sys.stderr)
        return 1
    result = replace(outcome.result, peak_memory_mib=memory)
    if arguments.out is not None:
        write_result(arguments.out, result)
    if arguments.html is not None:
        write_text(arguments.html, serve_page(result))
    print(msgspec.json.encode(result).decode() if arguments.json else serve_text(result))
    return 0


def _at_least(least: float, values: list[float], flag: str) -> None:
    for value in values:
        if value < least:
            raise ConfigError(f"{flag} is {value:g}; it takes {least:g} or more")


def _serve_words(folder: str | None, flags: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    """The words for `adjudge serve` that say what was said to this command about the engine."""
    words = [] if folder is None else [folder]
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if name == "config":
            words += ["--config", str(value)]
        elif name in kinds(EngineConfig) and isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif name in kinds(EngineConfig):
            words += [f"--{flag}", str(value)]
    return [*words, *(word for key in keys for word in ("--api-key", key))]


def _peak_tokens_per_s(arguments: argparse.Namespace, config: EngineConfig) -> float | None:
    name, peak = arguments.geometry or config.random, peak_of(machine())
    if name is None or peak is None:
        return None
    from adjudge.checkpoint import GEOMETRIES

    if name not in GEOMETRIES:
        raise ConfigError(f"--geometry is {name!r}; it takes one of {', '.join(GEOMETRIES)}")
    return peak.flops / (2 * GEOMETRIES[name].product_weights)
