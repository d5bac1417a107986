"""The self-check as a report: every comparison, not only whether all were equal."""

from __future__ import annotations

from time import monotonic
from typing import Any

import torch

from adjudge.engine import Engine
from adjudge.progress import Progress
from adjudge.proof.evidence import Gate, gather
from adjudge.proof.result import CheckResult, Compared
from adjudge.self_check import num_comparisons, self_check


def check_exactness(
    engine: Engine, *, full: bool, progress: Progress, model: dict[str, Any]
) -> CheckResult:
    """Runs the short or the full check on a loaded engine, whatever was kept of earlier ones."""
    began = monotonic()
    rows: list[Compared] = []
    total = num_comparisons(engine.executor, full=full)
    with torch.inference_mode():
        for row in self_check(engine.executor, full=full):
            rows.append(Compared(row.name, row.shape, row.detail, row.passed))
            progress("comparisons", len(rows), total)
    failed = sum(not row.passed for row in rows)
    detail = f"{failed} of {len(rows)} failed" if failed else f"{len(rows)} comparisons"
    return CheckResult(
        model=engine.card.name,
        dtype=str(engine.executor.device.dtype).removeprefix("torch."),
        full=full,
        seconds=monotonic() - began,
        rows=tuple(rows),
        evidence=gather(gates=[Gate("every comparison holds", not failed, detail)], model=model),
    )
