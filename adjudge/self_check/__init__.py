"""Proof, on the device that will serve, that a prompt's result depends on its token ids alone.

Never a list of device names: products of the loaded weights run at many row counts, and passes
of the loaded model run in many company, and every bit is compared. On a GPU the mixers' kernels are
first held to their references, since a wrong kernel can be wrong alike everywhere; and a weight
shape whose library product fails falls to the Triton product, which is proved in its place.
`at_load` takes seconds and keeps what it found, see `kept`; `full` runs it all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from adjudge.errors import DeviceError
from adjudge.self_check.check_row import CheckRow
from adjudge.self_check.kept import keep, kept_file, read
from adjudge.self_check.op_check import OP, num_ops, ops
from adjudge.self_check.pass_check import passes
from adjudge.self_check.product_check import deltas, products

if TYPE_CHECKING:
    from adjudge.config import EngineConfig
    from adjudge.executor import Executor
    from adjudge.progress import Progress

__all__ = ["CheckRow", "at_load", "num_comparisons", "self_check"]

FEW_ROWS = (1, 2, 7, 16, 31, 33, 64, 100, 128, 200, 256, 500, 1000, 1536)
MANY_ROWS = (*range(1, 66), *range(66, 260, 7), *range(260, 1025, 37), 1280, 1536, 2048, 3000, 4096)


def at_load(
    executor: Executor, config: EngineConfig, *, progress: Progress | None = None
) -> dict[str, Any]:
    """Runs the short check, or takes its kept result for this device, build and geometry.

    Returns what health shows. Raises DeviceError if a kernel is wrong, or if a bit differs and
    `allow_inexact` is off.
    """
    kept = kept_file(executor)
    found = None if kept is None else read(kept, executor.model.linear_plan)
    if found is not None:
        executor.use(found)
        return {"self_check": "passed", "self_check_kept": True, **_fallbacks(executor)}
    rows: list[CheckRow] = []
    total = num_comparisons(executor, full=False)
    for row in self_check(executor, full=False):
        rows.append(row)
        if progress is not None:
            progress("self-check", len(rows), total)
    failed = [row for row in rows if not row.passed]
    if not failed:
        if kept is not None:
            keep(kept, rows, executor.model.linear_plan)
        return {"self_check": "passed", "self_check_kept": False, **_fallbacks(executor)}
    if wrong := [row for row in failed if row.name == OP]:
        raise DeviceError(
            f"kernels compute something else than they should on this device ({_listed(wrong)}); "
            "a compiler may have made them wrong. Use another version of torch and triton"
        )
    what = _listed(failed)
    if not config.allow_inexact:
        raise DeviceError(
            f"this device does not compute rows exactly ({what}); answers would depend on what "
            "else is asked. Use another device or library version, or say --allow-inexact"
        )
    return {"self_check": "failed", "inexact": what, **_fallbacks(executor)}


def self_check(executor: Executor, *, full: bool) -> Iterator[CheckRow]:
    """The mixers, products of every weight shape, then passes: packed, shared, padded, replayed, on
    states."""
    row_counts = MANY_ROWS if full else FEW_ROWS
    yield from ops(executor)
    yield from products(executor, row_counts)
    yield from deltas(executor, row_counts)
    yield from passes(executor, seeds=_seeds(full))


def num_comparisons(executor: Executor, *, full: bool) -> int:
    """How many rows `self_check` gives."""
    of_a_forest = 3 if executor.graphs is None else 5
    of_a_forest += 0 if executor.states is None else 2
    model = executor.model
    of_weights = len(model.products()) + len(model.deltas())
    return num_ops(executor) + of_weights + of_a_forest * len(_seeds(full))


def _listed(rows: Sequence[CheckRow]) -> str:
    return "; ".join(f"{row.name} {row.shape}: {row.detail}" for row in rows)


def _seeds(full: bool) -> range:
    return range(8 if full else 1)


def _fallbacks(executor: Executor) -> dict[str, Any]:
    """The weight shapes [N, K] that run by the Triton product, and those whose products are added
    apart, for health."""
    plan = executor.model.linear_plan
    shapes = {"fallback_products": plan.own, "products_added_apart": plan.apart}
    return {name: [list(shape) for shape in sorted(of)] for name, of in shapes.items() if of}
