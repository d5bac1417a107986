"""Captures on a GPU: one that fails leaves the others, the device and every answer as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from adjudge import graphs
from adjudge.checkpoint import random_checkpoint
from adjudge.config import EngineConfig
from adjudge.executor import Executor
from adjudge.forest import plan
from adjudge.models.qwen3_5 import Qwen3_5
from adjudge.ops.tables import Tables
from adjudge.state import Carry

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MORE_THAN_THERE_IS = 1 << 50


def test_a_capture_without_memory_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(random="2b", device="cuda", graphs=False, self_check=False)
    executor = Executor.load(random_checkpoint("2b", num_layers=4), config)
    forward = Qwen3_5.forward

    def greedy(model: Qwen3_5, tables: Tables, carry: Carry | None = None) -> Tensor:
        hidden_QH = forward(model, tables, carry)
        if len(tables.token_ids_R) == 96 and torch.cuda.is_current_stream_capturing():
            torch.empty(MORE_THAN_THERE_IS, dtype=torch.uint8, device="cuda")
        return hidden_QH

    forests = [plan([np.arange(1, 1 + count, dtype=np.int32)]) for count in (60, 90, 110)]
    expected = [executor.hidden(executor.prepare(forest)).clone() for forest in forests]
    with monkeypatch.context() as patched:
        patched.setattr(Qwen3_5, "forward", greedy)
        executor.graphs = made = graphs.capture(executor, config)
    assert made.num_failures > 0
    assert all(bucket.rows != 96 for bucket in made.captured)
    taken = [executor.prepare(forest).bucket for forest in forests]
    assert [bucket.rows for bucket in taken if bucket is not None] == [64, 112, 112]
    for forest, alone in zip(forests, expected, strict=True):
        assert torch.equal(executor.hidden(executor.prepare(forest)), alone)
    assert executor.counters.replays == len(forests)
    executor.close()
