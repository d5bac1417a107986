"""A result as one self-contained HTML page: tables, latency distribution, throughput."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

import msgspec

from adjudge.proof.evidence import Evidence
from adjudge.proof.plot import Line, bars, distribution
from adjudge.proof.result import Pass, ServeResult

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .2rem .7rem }
th { text-align: left; border-bottom: 1px solid } td { text-align: right }
td:first-child { text-align: left } figure { margin: 1.5rem 0 } figcaption { font-weight: 600 }
svg { max-width: 100%; height: auto } svg text { fill: currentColor; font: 12px sans-serif }
pre { overflow-x: auto; font-size: 13px }
"""


def serve_page(result: ServeResult) -> str:
    """The whole page. Needs no network and no script."""
    title = f"{result.workload} on {result.evidence.machine.name}"
    lines = [Line(one.mode, _all_times(one)) for one in result.passes]
    rates = [(one.mode, one.requests_per_s) for one in result.passes]
    about = (
        f"{result.requests} requests, {result.candidates} candidates, model {result.model}. "
        "Milliseconds from sending a request to its checked answer."
    )
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(about)}</p>",
        _table(
            ["load", "mean", "p50", "p95", "p99", "requests/s", "decisions/s", "turned away"],
            [
                (one.mode, one.latency_ms.mean, one.latency_ms.p50, one.latency_ms.p95,
                 one.latency_ms.p99, one.requests_per_s, one.decisions_per_s, one.turned_away)
                for one in result.passes
            ],
        ),
        _figure("Share of requests answered within a time", distribution(lines)),
        _figure("Requests a second", bars(rates)),
    ]  # fmt: skip
    for one in result.passes:
        rows = [
            (group.name, group.requests, group.latency_ms.mean, group.latency_ms.p50,
             group.latency_ms.p95)
            for group in one.groups
        ]  # fmt: skip
        body.append(f"<h2>{html.escape(one.mode)}</h2>")
        body.append(_table(["group", "requests", "mean", "p50", "p95"], rows))
    body.append(_evidence(result.evidence))
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n" + "\n".join(body) + "\n"
    )


def _all_times(one: Pass) -> list[float]:
    return [time for times in one.times_ms.values() for time in times]


def _figure(caption: str, svg: str) -> str:
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{svg}</figure>"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in headers)
    lines = "".join(
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>\n" for row in rows
    )
    return f"<table><tr>{head}</tr>\n{lines}</table>"


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return html.escape(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _evidence(evidence: Evidence) -> str:
    facts = json.dumps(msgspec.to_builtins(evidence), indent=1, ensure_ascii=False)
    return f"<h2>Evidence</h2>\n<pre>{html.escape(facts)}</pre>"
