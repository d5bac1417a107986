"""Every way in which the mixers' kernels may be launched has the same bits on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from adjudge.checkpoint import random_checkpoint
from adjudge.config import EngineConfig
from adjudge.device_tables import to_device
from adjudge.executor import Executor
from adjudge.forest import plan
from adjudge.layout import layout

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    config = EngineConfig(random="9b", device="cuda", graphs=False, self_check=False)
    made = Executor.load(random_checkpoint("9b", num_layers=4), config)
    yield made
    made.close()


def hidden(executor: Executor) -> Tensor:
    rng = np.random.default_rng(5)
    state = rng.integers(0, 200_000, 900)
    tails = [rng.integers(0, 200_000, n) for n in (1, 30, 64, 200)]
    prompts = [np.concatenate([state, tail]).astype(np.int32) for tail in tails]
    laid = layout(plan([*prompts, prompts[0][:77]]), height=executor.height)
    return executor.model.forward(to_device(laid, torch.device("cuda"))).clone()


def test_attention(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    from adjudge.ops import launch, triton_attention

    expected = hidden(executor)
    for choice in (triton_attention.WIDE, *triton_attention.NARROW):
        monkeypatch.setattr(triton_attention, "WIDE", choice)
        monkeypatch.setattr(triton_attention, "NARROW", (choice,))
        monkeypatch.setattr(launch, "_found", {})
        assert torch.equal(hidden(executor), expected), choice


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("depth", [3, 2, 1])
def test_delta_rule(
    executor: Executor, width: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adjudge.ops import triton_scan

    expected = hidden(executor)
    monkeypatch.setattr(triton_scan, "NARROW", width)
    monkeypatch.setattr(triton_scan, "WIDE", width)
    monkeypatch.setattr(triton_scan, "DEEP", (depth,))
    monkeypatch.setattr(triton_scan, "SHALLOW", (depth,))
    assert torch.equal(hidden(executor), expected)


@pytest.mark.parametrize("fewest", [0, 1 << 30])
def test_convolution(executor: Executor, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from adjudge.ops import triton_conv

    expected = hidden(executor)
    monkeypatch.setattr(triton_conv, "MANY_CHUNKS", fewest)
    assert torch.equal(hidden(executor), expected)
