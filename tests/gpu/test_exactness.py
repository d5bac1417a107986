"""The invariant on a GPU: random forests against each prompt alone, to the bit.

Real geometries, a few layers of each (every kind of layer, every product shape). Memory that a
pass does not write is full of NaN. FORESTS in the environment: how many a geometry meets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from adjudge import graphs
from adjudge.checkpoint import random_checkpoint
from adjudge.config import EngineConfig
from adjudge.engine_door import Item
from adjudge.executor import Executor
from adjudge.families import Readout
from adjudge.forest import plan
from adjudge.layout import layout
from adjudge.reuse import plan_on
from adjudge.self_check import self_check
from adjudge.state import States

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NUM_FORESTS = int(os.environ.get("FORESTS", "200"))
if NUM_FORESTS < 1:
    raise ValueError(f"FORESTS is {NUM_FORESTS}; it takes 1 or more")
MOST_ROWS = 16_384
COMPARED = 8
"""Prompts of a forest that run alone too: the longest, the shortest, and others at random."""


@pytest.fixture(scope="module", params=["2b", "4b", "9b", "27b"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    config = EngineConfig(random=request.param, device="cuda", graphs=False, self_check=False)
    made = Executor.load(random_checkpoint(request.param, num_layers=4), config)
    made.graphs = graphs.capture(made, config)
    print(request.param, made.device.facts(), made.graphs.num_captures, "graphs")  # noqa: T201
    yield made
    made.close()


def poison() -> None:
    """Fills the memory that the next pass will be given with NaN."""
    torch.cuda.empty_cache()
    for _ in range(3):
        torch.full((1 << 28,), float("nan"), device="cuda", dtype=torch.bfloat16)


def random_forest(rng: np.random.Generator) -> list[np.ndarray]:
    """1 to 300 prompts of 1 to 4,200 tokens, in a tree of up to four levels of forks."""
    vocabulary = 200_000
    most = int(np.exp(rng.uniform(0, np.log(300))))
    paths = [rng.integers(0, vocabulary, int(np.exp(rng.uniform(0, np.log(3000)))))]
    for _ in range(int(rng.integers(0, 4))):
        tail = int(np.exp(rng.uniform(0, np.log(300))))
        grown = [
            np.concatenate([path, rng.integers(0, vocabulary, int(rng.integers(1, tail + 1)))])
            for path in paths
            for _ in range(int(rng.integers(1, max(2, most // len(paths) + 1))))
        ]
        paths = (paths if rng.random() < 0.3 else []) + grown
        paths = paths[:most]
    kept, rows = [], 0
    for path in paths:
        if rows + len(path) > 4 * MOST_ROWS:
            break
        kept.append(path[:4200].astype(np.int32))
        rows = plan(kept).num_rows if len(kept) < 2 else rows + len(path) // 3
    while plan(kept).num_rows > MOST_ROWS:
        kept = kept[: len(kept) // 2]
    return [kept[i] for i in rng.permutation(len(kept))]


def hidden(executor: Executor, prompts: list[np.ndarray], *, eager: bool) -> torch.Tensor:
    forest = plan(prompts)
    laid = layout(forest, height=executor.height) if eager else executor.prepare(forest)
    return executor.hidden(laid)[torch.from_numpy(forest.prompt_readout).cuda()].clone()


def test_random_forests(executor: Executor) -> None:
    rng = np.random.default_rng(0)
    compared = replayed = 0
    for index in range(NUM_FORESTS):
        prompts = random_forest(rng)
        poison() if index % 10 == 0 else None
        together = hidden(executor, prompts, eager=bool(index % 2))
        assert bool(together.isfinite().all())
        by_length = np.argsort([len(p) for p in prompts])
        chosen = {int(by_length[0]), int(by_length[-1])}
        chosen |= set(rng.integers(0, len(prompts), COMPARED).tolist())
        for i in chosen:
            before = executor.counters.replays
            alone = hidden(executor, [prompts[i]], eager=bool(i % 2))
            replayed += executor.counters.replays - before
            assert torch.equal(together[i], alone[0]), (index, i, len(prompts[i]))
            compared += 1
    print(f"{NUM_FORESTS} forests, {compared} prompts, {replayed} replayed")  # noqa: T201


def test_passes_on_kept_states(executor: Executor) -> None:
    """Forests keep states at random depths under a small budget, and meet those kept before."""
    rng = np.random.default_rng(2)
    config, device = executor.model.config, executor.device
    budget = 24 * States(config, 0, dtype=device.dtype, device=device.torch_device).num_bytes(1024)
    states = States(config, budget, dtype=device.dtype, device=device.torch_device)
    reused = 0
    # A few forests meet no kept state.
    for index in range(max(10, NUM_FORESTS // 4)):
        prompts = random_forest(rng)
        for _ in range(2):
            depths = [int(rng.integers(0, len(p) // 64 + 1)) * 64 for p in prompts]
            items = [Item(p, Readout(), 0, d) for p, d in zip(prompts, depths, strict=True)]
            reuse = plan_on(items, states.prefixes)
            poison() if index % 10 == 0 else None
            with states.carried(reuse) as carry:
                laid = executor.prepare(reuse.forest, eager=True)
                together = executor.hidden(laid, carry).clone()
            reused += reuse.reused_rows
            for i in set(rng.integers(0, len(prompts), COMPARED).tolist()):
                alone = hidden(executor, [prompts[i]], eager=bool(i % 2))
                row = int(reuse.forest.prompt_readout[i])
                assert torch.equal(together[row], alone[0]), (index, i, reuse.hit_tokens[i])
            tails = [rng.integers(0, 200_000, int(rng.integers(1, 80))) for _ in prompts]
            prompts = [
                np.concatenate([p[: int(rng.integers(1, len(p) + 1))], tail]).astype(np.int32)
                for p, tail in zip(prompts, tails, strict=True)
            ]
            while plan(prompts).num_rows > MOST_ROWS:
                prompts = prompts[: len(prompts) // 2]
    assert reused > 0 and states.prefixes.num_bytes <= budget
    print(f"{reused} rows reused, {states.facts()}")  # noqa: T201


def test_a_refused_pass_and_a_larger_one_leave_no_trace(executor: Executor) -> None:
    rng = np.random.default_rng(1)
    prompt = [rng.integers(0, 200_000, 77).astype(np.int32)]
    first = hidden(executor, prompt, eager=False)
    hidden(executor, [rng.integers(0, 200_000, 12_000).astype(np.int32)], eager=True)
    with pytest.raises(ValueError, match="at least one"):
        plan([])
    assert torch.equal(hidden(executor, prompt, eager=False), first)


def test_the_full_self_check_passes(executor: Executor) -> None:
    failed = [row for row in self_check(executor, full=True) if not row.passed]
    assert failed == []
