"""Recorded results as Markdown: the page with everything, and the short table of the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from adjudge.proof.evidence import Evidence, Machine
from adjudge.proof.result import (
    AnyResult,
    CheckResult,
    EngineResult,
    ParityResult,
    Pass,
    ServeResult,
)
from adjudge.proof.spread import Percentiles

Results = Sequence[tuple[Machine, Sequence[AnyResult]]]

NONE_YET = "No results are recorded yet; `adjudge bench` makes them, on any machine.\n"
HEAD = """# Results

Written by `scripts/results write` from docs/results/*.json; do not edit. Every figure was shown by
a command only after its checks of correctness had passed, and holds on its machine. Random weights
of a released geometry are good for times, never for quality.
"""


def page(results: Results) -> str:
    """The whole of docs/results.md."""
    parts = [HEAD]
    if not results:
        parts.append(NONE_YET)
    for machine, found in results:
        driver = "".join(f", driver {device.driver}" for device in machine.devices[:1])
        parts.append(
            f"## {machine.name}\n\n{machine.num_cpus} × {machine.cpu}, "
            f"{machine.memory_mib / 1024:.0f} GiB, {machine.system}, "
            f"Python {machine.python}{driver}.\n"
        )
        parts += [_section(result) for result in found]
    return "\n".join(parts)


def readme_table(results: Results) -> str:
    """Latency over HTTP, and passes of the engine, a row for each machine and model."""
    served = [
        [machine.name, one.model, _load(one, 1, "mean"), _load(one, 1, "p50"),
         _load(one, 1, "p95"), _rate(one)]
        for machine, found in results
        for one in found
        if isinstance(one, ServeResult) and one.workload == "public-231"
    ]  # fmt: skip
    layouts = ("64 × 1", "512 × 1", "4,096 × 1", "1,024 + 38 × 32", "3,072 + 38 × 255")
    passes = [
        [machine.name, one.model, *(_layout(one, name) for name in layouts)]
        for machine, found in results
        for one in found
        if isinstance(one, EngineResult) and any(_layout(one, name) for name in layouts)
    ]
    if not served and not passes:
        return NONE_YET
    parts = []
    if served:
        headers = ["public-231 over HTTP", "model", "mean ms", "p50", "p95", "requests/s at most"]
        parts.append(table(headers, served))
    if passes:
        parts.append(table(["one pass, ms", "model", *layouts], passes))
    return "\n".join([*parts, "More, with its evidence: [docs/results.md](docs/results.md).\n"])


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats with two decimals."""
    lines = [headers, ["---" if i == 0 else "---:" for i in range(len(headers))], *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _section(result: AnyResult) -> str:
    if isinstance(result, ServeResult):
        title, body = f"{result.workload} over HTTP", _serve(result)
    elif isinstance(result, EngineResult):
        title, body = "passes of the engine", _engine(result)
    elif isinstance(result, CheckResult):
        title, body = "exactness", _check(result)
    else:
        title, body = f"parity with transformers, {result.workload}", _parity(result)
    return f"### {result.model}: {title}\n\n{body}\n{_evidence(result.evidence)}"


def _serve(result: ServeResult) -> str:
    headers = ["load", "mean ms", "p50", "p95", "p99", "requests/s", "decisions/s",
               "unique tokens/s", "utilisation"]  # fmt: skip
    rows = [
        [one.mode, one.latency_ms.mean, one.latency_ms.p50, one.latency_ms.p95,
         one.latency_ms.p99, one.requests_per_s, one.decisions_per_s, one.unique_tokens_per_s,
         _percent(one.utilisation)]
        for one in result.passes
    ]  # fmt: skip
    first = result.passes[0]
    groups = [
        [one.name, one.requests, one.latency_ms.mean, one.latency_ms.p50, one.latency_ms.p95]
        for one in first.groups
    ]
    by_group = table([f"group, {first.mode}", "requests", "mean ms", "p50", "p95"], groups)
    names = list(dict.fromkeys(name for one in result.passes for name in one.parts_ms))
    parts = [[one.mode, *(one.parts_ms.get(name) for name in names)] for one in result.passes]
    by_part = f"{table(['medians, ms', *names], parts)}\n" if names else ""
    about = (
        f"{result.requests} requests, {result.candidates} candidates, {first.rounds} rounds after "
        f"{result.warm_up_requests} warm-up requests; at most {result.client_ms:.2f} ms of each "
        f"time is the client's own; {_memory(result)}answers `{result.answers_sha256[:16]}`."
    )
    return f"{table(headers, rows)}\n{by_part}{by_group}\n{about}\n"


def _memory(result: ServeResult) -> str:
    memory = result.device_memory_mib
    return "" if memory is None else f"{memory:,} MiB of the device at peak; "


def _engine(result: EngineResult) -> str:
    headers = ["layout", "unique", "padded", "run", "pass ms", "products ms", "ratio", "floor ms",
               "utilisation", "transformers ms"]  # fmt: skip
    rows = [
        [one.name, one.unique_tokens, one.padded_tokens, "graph" if one.graph else "eager",
         one.pass_ms, one.products_ms, one.ratio, one.floor_ms, _percent(one.utilisation),
         one.transformers_ms]
        for one in result.layouts
    ]  # fmt: skip
    parts = [table(headers, rows)]
    for one in result.layouts:
        ops = [[f"`{op.name}`", op.calls, op.ms] for op in one.ops]
        parts.append(
            f"<details><summary>{one.name} by op</summary>\n\n"
            f"{table(['op', 'calls', 'ms'], ops)}\n</details>\n"
        )
    memory = result.peak_memory_mib
    at_peak = "" if memory is None else f", {memory:,} MiB of the device at peak"
    parts.append(
        f"{result.dtype}, medians of {result.repeats} passes; ready after {result.load_s:.1f} s"
        f"{at_peak}.\n"
    )
    return "\n".join(parts)


def _check(result: CheckResult) -> str:
    found = Counter((row.name, row.shape.replace("|", "·"), row.detail) for row in result.rows)
    rows = [[*row, f"{times} times" if times > 1 else "once"] for row, times in found.items()]
    check = "The full check" if result.full else "The check at load"
    equal = table(["all passed", "shape or case", "detail", "compared"], rows)
    return f"{equal}\n{check}, {result.dtype}, {result.seconds:.1f} s.\n"


def _parity(result: ParityResult) -> str:
    parts = [f"{result.requests} requests, {result.prompts:,} prompts, {result.dtype}.\n"]
    for pair in result.pairs:
        spreads: list[tuple[str, Percentiles | None]] = [
            ("hidden state, relative L2", pair.hidden),
            ("logit", pair.logit),
            ("probability", pair.drift.probability),
            ("score, levels", pair.drift.score),
        ]
        rows = [
            [name, *(f"{value:.2e}" for value in (one.p50, one.p90, one.p99, one.most))]
            for name, one in spreads
            if one is not None
        ]
        flips = f"{len(pair.drift.flipped)} of {pair.drift.decisions:,} decisions changed.\n"
        parts += [table([pair.name, "p50", "p90", "p99", "largest"], rows), flips]
    return "\n".join(parts)


def _evidence(evidence: Evidence) -> str:
    build = evidence.build
    commit = f"commit {build.commit[:12]}, " if build.commit else ""
    libraries = ", ".join(f"{name} {version}" for name, version in evidence.libraries.items())
    gates = "; ".join(f"{gate.name} ({gate.detail})" for gate in evidence.gates)
    return "\n".join(
        [
            f"- `{evidence.command}`, {evidence.time}",
            f"- adjudge {build.version}, {commit}source {build.source_sha256[:12]}; {libraries}",
            f"- passed: {gates or 'no gate belongs to this command'}",
            "",
        ]
    )


def _load(result: ServeResult, concurrency: int, field: str) -> float | None:
    for one in result.passes:
        if one.mode == f"closed loop, {concurrency}":
            return float(getattr(one.latency_ms, field))
    return None


def _rate(result: ServeResult) -> str | None:
    """The most requests a second of a closed loop, and at which concurrency."""
    closed: list[Pass] = [one for one in result.passes if one.mode.startswith("closed")]
    if not closed:
        return None
    best = max(closed, key=lambda one: one.requests_per_s)
    return f"{best.requests_per_s:.1f} ({best.mode.rpartition(' ')[2]} at once)"


def _layout(result: EngineResult, name: str) -> float | None:
    return next((one.pass_ms for one in result.layouts if one.name == name), None)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
