"""Passes of the loaded model: prompts in company against each prompt alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from adjudge.buckets import Bucket
from adjudge.device_tables import to_device
from adjudge.engine_door import Item
from adjudge.families import Readout
from adjudge.forest import CHUNK, Forest, plan
from adjudge.layout import layout
from adjudge.reuse import plan_on
from adjudge.self_check.check_row import CheckRow
from adjudge.tiles import SHARED_WINDOWS

if TYPE_CHECKING:
    from adjudge.executor import Executor
    from adjudge.state import States

UNUSED_CHUNKS = 64
"""Of a padded pass: enough that attention and the convolution take the launches of large passes."""


def passes(executor: Executor, seeds: Sequence[int]) -> Iterator[CheckRow]:
    """Prompts in company against each prompt alone, eagerly; then the same padded, replayed, and on
    kept states, which are dropped again."""
    for seed in seeds:
        prompts = company(seed, executor.model.config.vocab_size)
        compared = partial(_compared, seed)
        alone = [_hidden(executor, plan([prompt]))[0] for prompt in prompts]
        forest = plan(prompts)
        yield compared("packed and shared", _hidden(executor, forest), alone)
        yield compared("reversed", _hidden(executor, plan(prompts[::-1])), alone[::-1])
        bucket = roomy(forest, unused_rows=37)
        yield compared("padded", _hidden(executor, forest, bucket), alone)
        if executor.graphs is not None:
            one_by_one = [plan([prompt]) for prompt in prompts]
            for name, forests in (("alone", one_by_one), ("together", [forest])):
                replays, replayed = _replayed(executor, forests)
                yield compared(f"replayed {name} ({replays})", replayed, alone)
        if executor.states is not None:
            for name in ("keeping states", "on kept states"):
                yield compared(name, _on_states(executor, executor.states, prompts), alone)
            executor.states.clear()


def company(seed: int, vocab_size: int) -> list[np.ndarray]:
    """Prompts that meet in every way: short and long, a prefix of another, forks at odd places,
    siblings far down a path."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> np.ndarray:
        return rng.integers(0, vocab_size, count).astype(np.int32)

    state, other = ids(int(rng.integers(90, 200))), ids(64)
    question = np.concatenate([state, ids(9)])
    tails = [np.concatenate([question, ids(int(n))]) for n in rng.integers(1, 40, 5)]
    far = ids(int(rng.integers(CHUNK * SHARED_WINDOWS, CHUNK * (SHARED_WINDOWS + 1))))
    siblings = [np.concatenate([far, ids(n)]) for n in (1, 9, 30, 30)]
    return [
        *tails, np.concatenate([state, ids(70)]), np.concatenate([other, ids(1)]), other, ids(1),
        ids(33), state, *siblings,
    ]  # fmt: skip


def roomy(forest: Forest, *, unused_rows: int) -> Bucket:
    """A bucket that the forest fits with room in every table but that of levels."""
    return Bucket(
        forest.num_rows + unused_rows,
        forest.num_chunks + UNUSED_CHUNKS,
        forest.path_chunks.shape[1] + 2,
        forest.num_levels,
    )


def _hidden(executor: Executor, forest: Forest, bucket: Bucket | None = None) -> list[Tensor]:
    laid = layout(forest, height=executor.height, bucket=bucket)
    hidden_QH = executor.model.forward(to_device(laid, executor.device.torch_device))
    return _of_prompts(forest, hidden_QH)


def _on_states(executor: Executor, states: States, prompts: Sequence[np.ndarray]) -> list[Tensor]:
    """Each prompt starts from the longest state that is kept of it, and its own is kept."""
    items = [Item(p, Readout(), keep_tokens=(len(p) - 1) // CHUNK * CHUNK) for p in prompts]
    reuse = plan_on(items, states.prefixes)
    with states.carried(reuse) as carry:
        hidden_QH = executor.hidden(executor.prepare(reuse.forest, eager=True), carry)
    return _of_prompts(reuse.forest, hidden_QH)


def _replayed(executor: Executor, forests: Sequence[Forest]) -> tuple[int, list[Tensor]]:
    """How many of the passes were replays, and the rows of their prompts."""
    before = executor.counters.replays
    rows = [
        row
        for forest in forests
        for row in _of_prompts(forest, executor.hidden(executor.prepare(forest)))
    ]
    return executor.counters.replays - before, rows


def _of_prompts(forest: Forest, hidden_QH: Tensor) -> list[Tensor]:
    """Each prompt's row, copied: a replay writes where the one before it did."""
    return [hidden_QH[q].clone() for q in forest.prompt_readout]


def _compared(
    seed: int, name: str, found: Sequence[Tensor], expected: Sequence[Tensor]
) -> CheckRow:
    different = [
        i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not torch.equal(a, b)
    ]
    detail = f"prompts {different} of seed {seed} differ" if different else f"{len(found)} prompts"
    return CheckRow("pass", name, detail, not different)
