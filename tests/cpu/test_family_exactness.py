"""Every family's readout, and deltas kept apart: the same bits alone, packed and shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from adjudge import Engine, EngineConfig
from adjudge.checkpoint.make import write_checkpoint
from adjudge.config import AdapterMode
from adjudge.engine_door import Item
from adjudge.families import FAMILIES
from adjudge.forest import plan
from tests.random_requests import items_of, random_forest, random_requests

CASES: list[tuple[str, AdapterMode]] = [
    *((family, "auto") for family in FAMILIES),
    ("open_jev", "unmerged"),
    ("cua_s1", "unmerged"),
    ("jev_vl", "unmerged"),
    ("jemm", "merged"),
]
MOST_ALONE = 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("families")
    return {family: write_checkpoint(place / family, family=family) for family in FAMILIES}


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def engine(
    request: pytest.FixtureRequest,
    folders: dict[str, Path],
    dtype: Literal["float32", "bfloat16"],
) -> Iterator[Engine]:
    family, adapter = request.param
    config = EngineConfig(device="cpu", dtype=dtype, adapter=adapter, self_check=False)
    with Engine.load(str(folders[family]), config) as loaded:
        yield loaded


def logits(engine: Engine, items: list[Item]) -> list[Any]:
    return list(engine.run(engine.prepare(items)).logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_readout_has_the_same_bits_alone_packed_and_shared(engine: Engine) -> None:
    rng = np.random.default_rng(0)
    items = items_of(engine, random_requests(engine.family.limits, rng, count=6))
    shared = logits(engine, items)
    apart = [Item(item.token_ids, item.readout, scope) for scope, item in enumerate(items)]
    order = rng.permutation(len(items))
    shuffled = logits(engine, [items[i] for i in order])
    packed = logits(engine, apart)
    for place, i in enumerate(order):
        assert np.array_equal(shuffled[place], shared[i])
    for one, other in zip(packed, shared, strict=True):
        assert np.array_equal(one, other) and np.isfinite(one).all()
    for i in order[:MOST_ALONE]:
        assert np.array_equal(logits(engine, [items[i]])[0], shared[i])
    assert len({row.tobytes() for row in shared}) > len(items) // 2


@pytest.mark.parametrize("family", ["open_jev", "cua_s1", "jemm", "jev_vl"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_random_forests_through_deltas_kept_apart(
    folders: dict[str, Path], family: str, dtype: Literal["float32", "bfloat16"]
) -> None:
    config = EngineConfig(device="cpu", dtype=dtype, adapter="unmerged", self_check=False)
    with Engine.load(str(folders[family]), config) as engine:
        executor = engine.executor
        assert any(projection.deltas for projection in executor.model.projections())
        rng = np.random.default_rng(1)
        for _ in range(6):
            prompts = random_forest(rng, vocab_size=1024, most_tokens=200)
            forest = plan(prompts)
            together = executor.hidden(executor.prepare(forest))[forest.prompt_readout]
            for i in rng.permutation(len(prompts))[:4]:
                alone = executor.hidden(executor.prepare(plan([prompts[i]])))[0]
                assert torch.equal(together[i], alone)
