"""Proof, on the device that will serve, that a prompt's result depends on its token ids alone.

Never a list of device names: products of the loaded weights run at many row counts, and passes
of the loaded model run in many company, and every bit is compared. `at_load` takes seconds and
keeps what it found under the device, the libraries and the model's geometry; `full` runs it all.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adjudge.device_tables import to_device
from adjudge.errors import DeviceError
from adjudge.forest import plan
from adjudge.layout import Bucket, layout
from adjudge.ops.linear import linear

if TYPE_CHECKING:
    from adjudge.config import EngineConfig
    from adjudge.executor import Executor
    from adjudge.progress import Progress

FEW_ROWS = (1, 2, 7, 16, 31, 33, 64, 100, 128, 200, 256, 500, 1000, 1536)
MANY_ROWS = (*range(1, 66), *range(66, 260, 7), *range(260, 1025, 37), 1280, 1536, 2048, 3000, 4096)


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One comparison. name: what was compared; shape: of what; passed: every bit was equal;
    detail: which rows or prompts differed, else how many were compared."""

    name: str
    shape: str
    detail: str
    passed: bool


def at_load(
    executor: Executor, config: EngineConfig, *, progress: Progress | None = None
) -> dict[str, Any]:
    """Runs the short check, or takes its kept result for this device, build and geometry.

    Returns what health shows. Raises DeviceError if a bit differs and `allow_inexact` is off.
    """
    kept = _kept_file(executor)
    if kept is not None and kept.is_file():
        return {"self_check": "passed", "self_check_kept": True}
    failed = []
    rows = list(self_check(executor, full=False))
    for done, row in enumerate(rows):
        if progress is not None:
            progress("self-check", done + 1, len(rows))
        if not row.passed:
            failed.append(row)
    if not failed:
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps([asdict(row) for row in rows]))
        return {"self_check": "passed", "self_check_kept": False}
    what = "; ".join(f"{row.name} {row.shape}: {row.detail}" for row in failed)
    if not config.allow_inexact:
        raise DeviceError(
            f"this device does not compute rows exactly ({what}); answers would depend on what "
            "else is asked. Use another device or library version, or say --allow-inexact"
        )
    return {"self_check": "failed", "inexact": what}


def self_check(executor: Executor, *, full: bool) -> Iterator[CheckRow]:
    """Products of every weight shape, then passes: packed, shared, padded, and replayed."""
    yield from products(executor, MANY_ROWS if full else FEW_ROWS)
    yield from passes(executor, seeds=range(8 if full else 1))


def products(executor: Executor, row_counts: Sequence[int]) -> Iterator[CheckRow]:
    """Each row of x · Wᵀ against the same row among the most rows."""
    for weight_NK in executor.model.products():
        generator = torch.Generator(weight_NK.device).manual_seed(0)
        x_RK = torch.randn(
            max(row_counts), weight_NK.shape[1], generator=generator, device=weight_NK.device
        ).to(weight_NK.dtype)
        blocks = executor.model.blocks
        whole_RN = linear(x_RK, weight_NK, blocks=blocks)
        different = [
            count
            for count in row_counts
            if not torch.equal(
                linear(x_RK[:count].clone(), weight_NK, blocks=blocks), whole_RN[:count]
            )
        ]
        detail = f"differs at {different} rows" if different else f"{len(row_counts)} row counts"
        yield CheckRow("product", f"{list(weight_NK.shape)}", detail, not different)


def passes(executor: Executor, seeds: Sequence[int]) -> Iterator[CheckRow]:
    """Prompts in company against each prompt alone, eagerly; then the same padded and replayed."""
    for seed in seeds:
        prompts = company(seed, executor.model.config.vocab_size)
        alone = [_hidden(executor, [prompt])[0] for prompt in prompts]
        together = {"packed and shared": prompts, "reversed": prompts[::-1]}
        for name, order in together.items():
            found = _hidden(executor, order)
            expected = alone if name != "reversed" else alone[::-1]
            yield _compared(name, found, expected)
        rows = plan(prompts).num_rows
        forest = plan(prompts)
        bucket = Bucket(
            rows + 37, forest.num_chunks + 5, forest.path_chunks.shape[1] + 2, forest.num_levels
        )
        yield _compared("padded", _hidden(executor, prompts, bucket), alone)
        if executor.graphs is not None:
            replayed = [_replayed(executor, [prompt])[0] for prompt in prompts]
            yield _compared("replayed alone", replayed, alone)
            yield _compared("replayed together", _replayed(executor, prompts), alone)


def company(seed: int, vocab_size: int) -> list[np.ndarray]:
    """Prompts that meet in every way: short and long, a prefix of another, forks at odd places."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> np.ndarray:
        return rng.integers(0, vocab_size, count).astype(np.int32)

    state, other = ids(int(rng.integers(90, 200))), ids(64)
    question = np.concatenate([state, ids(9)])
    tails = [np.concatenate([question, ids(int(n))]) for n in rng.integers(1, 40, 5)]
    return [
        *tails, np.concatenate([state, ids(70)]), np.concatenate([other, ids(1)]), other, ids(1),
        ids(33), state,
    ]  # fmt: skip


def _hidden(
    executor: Executor, prompts: Sequence[np.ndarray], bucket: Bucket | None = None
) -> list[Tensor]:
    forest = plan(prompts)
    laid = layout(forest, height=executor.height, bucket=bucket)
    hidden_QH = executor.model.forward(to_device(laid, executor.device.torch_device))
    return [hidden_QH[q].clone() for q in forest.prompt_readout]


def _replayed(executor: Executor, prompts: Sequence[np.ndarray]) -> list[Tensor]:
    forest = plan(prompts)
    hidden_QH = executor.hidden(executor.prepare(forest))
    return [hidden_QH[q].clone() for q in forest.prompt_readout]


def _compared(name: str, found: Sequence[Tensor], expected: Sequence[Tensor]) -> CheckRow:
    different = [
        i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not torch.equal(a, b)
    ]
    detail = f"prompts {different} differ" if different else f"{len(found)} prompts"
    return CheckRow("pass", name, detail, not different)


def _kept_file(executor: Executor) -> Path | None:
    """Where a passed check is kept: named by device, driver, libraries and geometry."""
    if not executor.device.is_cuda:
        return None
    import triton

    from adjudge import __version__

    facts = [
        __version__, executor.device.facts(), triton.__version__,
        torch.cuda.get_device_capability(executor.device.torch_device), str(executor.model.config),
        [list(w.shape) for w in executor.model.products()],
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "adjudge" / "self_check" / f"{name}.json"
