"""Every family's readout, and deltas kept apart, on a GPU: the same bits alone, packed, shared.

Small checkpoints made on the spot, each pass once eagerly and once as a graph's replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adjudge import Engine, EngineConfig
from adjudge.checkpoint.made_base import small_config
from adjudge.checkpoint.make import is_tied, write_checkpoint
from adjudge.engine_door import Item, Logits
from adjudge.families import FAMILIES
from adjudge.self_check import self_check
from tests.random_requests import items_of, random_requests

CASES = [(family, "auto") for family in FAMILIES]
CASES += [("open_jev", "unmerged"), ("cua_s1", "unmerged"), ("jev_vl", "unmerged")]
MOST_ALONE = 10


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    family, adapter = request.param
    config = small_config(
        "bytes",
        hidden_size=512,
        intermediate_size=1536,
        head_dim=128,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        tie_word_embeddings=is_tied(family),
    )
    folder: Path = write_checkpoint(
        tmp_path_factory.mktemp("gpu") / family, family=family, config=config
    )
    settings = EngineConfig(device="cuda", adapter=adapter, self_check=False, max_batch_tokens=8192)
    with Engine.load(str(folder), settings) as loaded:
        yield loaded


def logits(engine: Engine, items: list[Item], *, eager: bool) -> list[Logits]:
    graphs = engine.executor.graphs
    assert graphs is not None
    if eager:
        engine.executor.graphs = None
    try:
        return list(engine.run(engine.prepare(items)).logits)
    finally:
        engine.executor.graphs = graphs


def test_a_readout_has_the_same_bits_alone_packed_and_shared(engine: Engine) -> None:
    rng = np.random.default_rng(0)
    items = items_of(engine, random_requests(engine.family.limits, rng, count=4))
    shared = logits(engine, items, eager=True)
    apart = [Item(item.token_ids, item.readout, scope) for scope, item in enumerate(items)]
    order = rng.permutation(len(items))
    replays = engine.executor.counters.replays
    for eager in (True, False):
        shuffled = logits(engine, [items[i] for i in order], eager=eager)
        for place, i in enumerate(order):
            assert np.array_equal(shuffled[place], shared[i])
        for one, other in zip(logits(engine, apart, eager=eager), shared, strict=True):
            assert np.array_equal(one, other) and np.isfinite(one).all()
        for i in order[:MOST_ALONE]:
            assert np.array_equal(logits(engine, [items[i]], eager=eager)[0], shared[i])
    assert engine.executor.counters.replays >= replays + min(MOST_ALONE, len(items))
    assert len({row.tobytes() for row in shared}) > len(items) // 2


def test_the_self_check_passes(engine: Engine) -> None:
    rows = list(self_check(engine.executor, full=False))
    assert [row for row in rows if not row.passed] == []
    apart = bool(engine.executor.model.deltas())
    assert apart == (engine.health()["adapter"] == "unmerged")
    assert any(row.name.startswith("delta") for row in rows) == apart
