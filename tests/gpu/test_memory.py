"""No pass takes more of a GPU than its plan says, whatever passes came before it."""

from __future__ import annotations

from multiprocessing import get_context

import numpy as np
import pytest
import torch

from adjudge import memory
from adjudge.checkpoint import random_checkpoint
from adjudge.config import EngineConfig
from adjudge.executor import Executor
from adjudge.forest import plan
from adjudge.self_check import self_check

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

GIB = 1 << 30
LAYOUTS = ((64, 0, 0), (700, 0, 0), (256, 38, 40), (4096, 0, 0), (300, 38, 255), (3072, 38, 255))
"""Tokens of a state, of a candidate, and candidates; ascending, as fragments the allocator most."""


def prompts_of(state: int, tail: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(state)
    shared = rng.integers(0, 200_000, state).astype(np.int32)
    tails = rng.integers(0, 200_000, (count, tail)).astype(np.int32)
    return [np.concatenate([shared, tail]) for tail in tails] if count else [shared]


@pytest.mark.parametrize("geometry", ["2b", "9b", "27b"])
def test_the_peak_stays_below_the_plan(geometry: str) -> None:
    # In a process of its own: what others left in the allocator would be used and not counted.
    with get_context("spawn").Pool(1) as alone:
        planned, loaded, peak = alone.apply(measured, (geometry,))
    print(  # noqa: T201
        f"{geometry}, 4 layers: planned {(planned.total - planned.libraries) / GIB:.2f} GiB without"
        f" libraries, {loaded / GIB:.2f} taken when loaded, {peak / GIB:.2f} at the peak\n"
        + "\n".join(planned.lines())
    )
    room = planned.activations + planned.chunks
    assert loaded >= planned.weights + room, "the largest pass's room was given back"
    assert peak <= planned.total - planned.libraries


def measured(geometry: str) -> tuple[memory.MemoryPlan, int, int]:
    """The plan, and bytes that the allocator has of the device when loaded and at its peak."""
    checkpoint = random_checkpoint(geometry, num_layers=4)
    config = EngineConfig(random=geometry, device="cuda")
    planned = memory.plan(checkpoint.text_config, config, item_bytes=2, budget=0)
    executor = Executor.load(checkpoint, config)
    loaded = torch.cuda.memory_reserved()
    list(self_check(executor, full=False))
    for state, tail, count in LAYOUTS:
        executor.hidden(executor.prepare(plan(prompts_of(state, tail, count))))
    full = prompts_of(config.max_batch_tokens - 38 * 300, 38, 300)
    executor.hidden(executor.prepare(plan(full)))
    torch.cuda.synchronize()
    return planned, loaded, torch.cuda.max_memory_reserved()
