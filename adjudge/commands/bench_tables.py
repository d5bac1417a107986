"""Results of `bench` as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from adjudge.commands.table import table
from adjudge.proof.evidence import Evidence, Gate
from adjudge.proof.result import EngineResult, ServeResult
from adjudge.proof.spread import Latency


def show_gates(gates: Sequence[Gate], stream: TextIO) -> None:
    """Each gate in a line; the failed ones say what was seen."""
    for gate in gates:
        stream.write(f"{'passed' if gate.passed else 'FAILED'}  {gate.name}: {gate.detail}\n")
    if not all(gate.passed for gate in gates):
        stream.write("a check failed: no figure is shown\n")


def evidence_text(evidence: Evidence) -> str:
    """Machine, build, libraries and gates, a line each."""
    build = evidence.build
    commit = build.commit[:12] if build.commit else f"source {build.source_sha256[:12]}"
    driver = "".join(f", driver {device.driver}" for device in evidence.machine.devices[:1])
    versions = ", ".join(f"{name} {number}" for name, number in evidence.libraries.items())
    return "\n".join(
        [
            f"machine   {evidence.machine.name}{driver}",
            f"build     adjudge {build.version}, {commit}{' (changed)' if build.dirty else ''}",
            f"libraries {versions}",
            *(
                f"{'passed' if gate.passed else 'FAILED'}    {gate.name}: {gate.detail}"
                for gate in evidence.gates
            ),
        ]
    )


def serve_text(result: ServeResult) -> str:
    """The passes, their groups, the quality if there is one, and the evidence."""
    title = (
        f"{result.workload}: {result.requests} requests, {result.candidates} candidates, model "
        f"{result.model}; milliseconds; after {result.warm_up_requests} warm-up requests"
    )
    parts = [
        title,
        table(
            ["load", "mean", "p50", "p95", "p99", "req/s", "decisions/s", "unique tok/s",
             "utilisation %", "turned away"],
            [
                (one.mode, *_times(one.latency_ms), one.requests_per_s, one.decisions_per_s,
                 one.unique_tokens_per_s,
                 None if one.utilisation is None else 100 * one.utilisation, one.turned_away)
                for one in result.passes
            ],
            decimals=2,
        ),
    ]  # fmt: skip
    first = result.passes[0]
    if len(first.groups) > 1:
        rows = [(one.name, one.requests, *_times(one.latency_ms)) for one in first.groups]
        headers = [f"group ({first.mode})", "requests", "mean", "p50", "p95", "p99"]
        parts.append(table(headers, rows, decimals=2))
    names = list(dict.fromkeys(name for one in result.passes for name in one.parts_ms))
    if names:
        parts_of = [
            (one.mode, *(one.parts_ms.get(name) for name in names)) for one in result.passes
        ]
        parts.append(table(["of the median", *names], parts_of, decimals=3))
    if result.quality is not None:
        quality = result.quality
        parts.append(
            table(
                ["labelled", "choice accuracy", "noul accuracy", "noul Brier", "level error"],
                [(quality.labelled, quality.choice_accuracy, quality.noul_accuracy,
                  quality.noul_brier, quality.level_error)],
            )
        )  # fmt: skip
    known = [("process", result.peak_memory_mib), ("device", result.device_memory_mib)]
    memory = ", ".join(f"{mib:,} MiB of the server's {what}" for what, mib in known if mib)
    parts.append(
        f"client    {result.client_ms:.3f} ms of each time at most is this program's own\n"
        + (f"memory    {memory} at peak\n" if memory else "")
        + evidence_text(result.evidence)
    )
    return "\n\n".join(parts)


def engine_text(result: EngineResult, *, with_ops: bool) -> str:
    """The layouts, each one's time by op if wanted, and the evidence."""
    memory = result.peak_memory_mib
    title = f"{result.model}, {result.dtype}; milliseconds, medians of {result.repeats} passes"
    rows = [
        (one.name, one.unique_tokens, one.padded_tokens, "graph" if one.graph else "eager",
         one.pass_ms, one.products_ms, one.ratio, one.floor_ms,
         None if one.utilisation is None else 100 * one.utilisation, one.transformers_ms)
        for one in result.layouts
    ]  # fmt: skip
    headers = ["layout", "unique", "padded", "run", "pass", "products", "ratio", "floor",
               "utilisation %", "transformers"]  # fmt: skip
    parts = [title, table(headers, rows, decimals=2)]
    if with_ops:
        for one in result.layouts:
            ops = [(op.name, op.calls, op.ms, 100 * op.ms / one.pass_ms) for op in one.ops]
            parts.append(table([one.name, "calls", "ms", "% of pass"], ops, decimals=3))
    parts.append(
        f"ready     after {result.load_s:.1f} s\n"
        + ("" if memory is None else f"memory    {memory:,} MiB of the device at peak\n")
        + evidence_text(result.evidence)
    )
    return "\n\n".join(parts)


def _times(latency: Latency) -> tuple[float, float, float, float]:
    return latency.mean, latency.p50, latency.p95, latency.p99
