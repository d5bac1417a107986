"""States kept across passes: a warm pass has the bits of a cold one, within the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adjudge import Engine, EngineConfig
from adjudge.checkpoint.make import write_checkpoint
from adjudge.device_tables import to_device
from adjudge.engine_door import Item, Pass
from adjudge.errors import DeviceError
from adjudge.families import Readout
from adjudge.layout import layout
from adjudge.models.qwen3_5 import Qwen3_5
from adjudge.ops.attention import SLOTS
from adjudge.reuse import Reuse, plan_on
from adjudge.self_check import self_check
from adjudge.state import LayerCarry, States
from tests.small_models import CPU, LIKE_9B, LIKE_27B, Ids, hidden, ours, token_ids

MIB = 1 << 20
CONFIGS = {
    name: replace(config, num_hidden_layers=4, layer_types=config.layer_types[:4])
    for name, config in {"9b": LIKE_9B, "27b": LIKE_27B}.items()
}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def join(*parts: Ids) -> Ids:
    return np.concatenate(parts)


def item(prompt: Ids, keep_tokens: int = 0, salt: str | None = None) -> Item:
    return Item(prompt, Readout(), 0, keep_tokens, salt)


@cache
def known(name: str, dtype: torch.dtype, prompt: bytes) -> Tensor:
    """[H] of a prompt alone, without any state."""
    return hidden(ours(CONFIGS[name], dtype), [np.frombuffer(prompt, np.int32)])[0]


class Warm:
    """A model with a pool of states. `run` compares every prompt with a cold, lonely pass."""

    def __init__(self, name: str, dtype: torch.dtype, budget_bytes: int = 64 * MIB) -> None:
        self.name, self.dtype = name, dtype
        self.model: Qwen3_5 = ours(CONFIGS[name], dtype)
        self.states = States(CONFIGS[name], budget_bytes, dtype=dtype, device=CPU)

    def run(self, items: Sequence[Item]) -> Reuse:
        reuse = plan_on(items, self.states.prefixes)
        tables = to_device(layout(reuse.forest, height=SLOTS), CPU)
        with self.states.carried(reuse) as carry:
            hidden_QH = self.model.forward(tables, carry)
        for one, q in zip(items, reuse.forest.prompt_readout, strict=True):
            expected = known(self.name, self.dtype, one.token_ids.tobytes())
            assert bool(expected.isfinite().all())
            assert hidden_QH[q].equal(expected), (len(one.token_ids), reuse.hit_tokens)
        assert self.held_bytes() <= self.states.prefixes.budget_bytes
        return reuse

    def held_bytes(self) -> int:
        """Bytes of the memory behind the states, counted on the tensors themselves."""
        held = [kept.state for kept in self.states.prefixes._order]
        return sum(state[0][0].untyped_storage().nbytes() for state in held)


@pytest.fixture(params=DTYPES.values(), ids=DTYPES)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_chain_of_growing_prompts(name: str, dtype: torch.dtype) -> None:
    warm, text = Warm(name, dtype), token_ids(0, 600)
    for length in (70, 130, 131, 200, 390, 391, 600, 600):
        reuse = warm.run([item(text[:length], (length - 1) // 64 * 64)])
        assert reuse.forest.num_rows + reuse.reused_rows == length
    assert reuse.hit_tokens == (576,)
    assert warm.states.hit_tokens == 64 + 128 + 128 + 192 + 384 + 384 + 576


def test_forks_inside_a_chunk_after_the_hit(dtype: torch.dtype) -> None:
    warm, state = Warm("9b", dtype), token_ids(1, 128)
    warm.run([item(join(state, token_ids(2, 5)), 128)])
    question = join(state, token_ids(3, 90))
    for cut in (128, 129, 130, 131, 150, 191, 192, 193, 218):
        tails = [join(question[:cut], token_ids(10 + n, 1 + 20 * n)) for n in range(4)]
        reuse = warm.run([item(question), *map(item, tails)])
        assert reuse.hit_tokens == (128,) * 5


@pytest.mark.parametrize("rest", [1, 2, 3, 4, 63, 64, 65])
def test_what_follows_a_hit_may_be_short(dtype: torch.dtype, rest: int) -> None:
    warm, state = Warm("9b", dtype), token_ids(4, 192)
    warm.run([item(join(state, token_ids(5, 9)), 192)])
    reuse = warm.run([item(join(state, token_ids(6, rest)))])
    assert (reuse.forest.num_rows, reuse.reused_rows) == (rest, 192)


def test_a_prompt_that_an_entry_covers_computes_its_last_rows(dtype: torch.dtype) -> None:
    warm, text = Warm("9b", dtype), token_ids(7, 192)
    warm.run([item(text, 192)])
    assert warm.run([item(text)]).hit_tokens == (0,)
    warm.run([item(text, 128)])
    assert warm.run([item(text)]).hit_tokens == (128,)


def test_hits_of_different_lengths_misses_and_salts_in_one_batch(dtype: torch.dtype) -> None:
    warm, text, other = Warm("9b", dtype), token_ids(8, 500), token_ids(9, 300)
    for length, salt in ((64, None), (320, None), (128, "a")):
        warm.run([item(text[: length + 1], length, salt)])
    warm.run([item(other[:200], 192, "a")])
    batch = [
        item(text[:500]), item(text[:321]), item(text[:320]), item(text[:70]),
        item(join(text[:64], token_ids(10, 80))), item(text[:129], 0, "a"), item(other, 0, "a"),
        item(other[:210], 192), item(token_ids(11, 33)),
    ]  # fmt: skip
    reuse = warm.run(batch)
    assert reuse.hit_tokens == (320, 320, 64, 64, 64, 128, 192, 0, 0)
    assert len(reuse.trunks) == 4
    reuse = warm.run(batch[::-1])
    assert reuse.hit_tokens == (0, 192, 192, 128, 64, 64, 64, 320, 320)


def test_eviction_between_and_room_for_one(dtype: torch.dtype) -> None:
    first, second = token_ids(12, 200), token_ids(13, 200)
    size = Warm("9b", dtype).states.num_bytes(192)
    warm = Warm("9b", dtype, size)
    for prompt, hit in ((first, 0), (first, 192), (second, 0), (first, 0), (first, 192)):
        assert warm.run([item(prompt, 192)]).hit_tokens == (hit,)
    assert warm.states.facts()["evicted"] == 2
    assert warm.states.prefixes.num_bytes == size
    warm.run([item(first, 192), item(second, 192)])
    assert warm.states.facts()["left_out"] == 1, "what the pass reads is not evicted for it"
    assert warm.run([item(first)]).hit_tokens == (192,)
    small = Warm("9b", dtype, size - 1)
    small.run([item(first, 192)])
    assert len(small.states.prefixes) == 0


def test_the_budget_counts_what_the_tensors_take() -> None:
    for config in CONFIGS.values():
        states = States(config, MIB, dtype=torch.bfloat16, device=CPU)
        state = states._empty(128)
        assert len(state) == config.num_hidden_layers
        assert state[0][0].untyped_storage().nbytes() + 4 * 128 == states.num_bytes(128)
        parts = [part for pair in state for part in pair]
        spans = sorted((p.data_ptr(), p.data_ptr() + p.nbytes) for p in parts)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_a_pass_that_fails_leaves_the_pool_as_it_was() -> None:
    warm, text = Warm("9b", torch.float32), token_ids(14, 300)
    warm.run([item(text[:100], 64)])
    before, (kept,) = warm.states.prefixes.num_bytes, warm.states.prefixes._order
    reuse = plan_on([item(text, 256)], warm.states.prefixes)
    with pytest.raises(RuntimeError, match="planted"), warm.states.carried(reuse):
        raise RuntimeError("planted")
    assert warm.states.prefixes.num_bytes == before
    assert [*warm.states.prefixes._order] == [kept] and kept.state is not None
    assert warm.run([item(text)]).hit_tokens == (64,)


def test_no_memory_for_a_state_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    warm = Warm("9b", torch.float32)

    def full(num_tokens: int) -> Any:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(States, "_empty", lambda self, num_tokens: full(num_tokens))
    warm.run([item(token_ids(15, 100), 64)])
    facts = warm.states.facts()
    assert (facts["states"], facts["mib"], facts["left_out"]) == (0, 0, 1)


@settings(max_examples=60)
@given(st.data())
def test_any_passes_under_any_budget(data: st.DataObject) -> None:
    """Prompts continue cuts of earlier ones; each pass is compared with lonely cold ones."""
    name = data.draw(st.sampled_from(sorted(CONFIGS)))
    dtype = data.draw(st.sampled_from([*DTYPES.values()]))
    size = States(CONFIGS[name], 0, dtype=dtype, device=CPU).num_bytes(64)
    warm = Warm(name, dtype, data.draw(st.integers(1, 6)) * size)
    prompts: list[Ids] = [token_ids(0, 150)]
    seed = 0
    for _ in range(data.draw(st.integers(2, 5))):
        batch = []
        for _ in range(data.draw(st.integers(1, 5))):
            parent = data.draw(st.sampled_from(prompts))
            cut = data.draw(st.sampled_from([0, 1, 63, 64, 65, 127, 128, 129, 192, 255, 256]))
            seed += 1
            tail = token_ids(seed, data.draw(st.integers(1, 90)))
            prompts.append(join(parent[:cut], tail)[:280])
            most = len(prompts[-1]) // 64
            salt = data.draw(st.sampled_from([None, None, "a"]))
            batch.append(item(prompts[-1], 64 * data.draw(st.integers(0, most)), salt))
        warm.run(batch)


# -- the engine


def request(state: str, *questions: str, **more: Any) -> dict[str, Any]:
    noul = {name: {"type": "noul", "instructions": f"Is it {name}?"} for name in questions}
    choice = {"type": "choice", "criteria": {f"team {n}": None for n in range(5)}}
    return {"state": state, "questions": noul | {"team": choice}, **more}


def stable(response: dict[str, Any]) -> dict[str, Any]:
    return {key: response[key] for key in ("model", "answers", "usage")}


def hits(response: dict[str, Any]) -> int:
    found: int = response["x_metadata"]["prefix_cache"]["hit_tokens"]
    return found


STATES = ["The parcel is two weeks late. " * 9, "Nobody answers the phone, again. " * 7]


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_warm_engine_answers_as_a_cold_one(
    demo: Path, kind: Literal["float32", "bfloat16"]
) -> None:
    cold = Engine.load(str(demo), EngineConfig(dtype=kind))
    warm = Engine.load(str(demo), EngineConfig(dtype=kind, prefix_cache_mib=8))
    asked = [
        request(state[:length], *questions)
        for length in (100, 200, 230)
        for state in STATES
        for questions in (("late",), ("late", "sad"), ("new",))
    ]
    total = 0
    for body in [*asked, *asked[::-1], *asked]:
        answered = warm.decide(body)
        assert stable(answered) == stable(cold.decide(body))
        total += hits(answered)
    facts = warm.health()["prefix_cache"]
    assert total > 0 and facts["hit_tokens"] >= total and facts["mib"] <= facts["budget_mib"] == 8
    assert "prefix_cache" not in cold.health()
    cold.close()
    warm.close()
    assert warm.executor.states is not None and len(warm.executor.states.prefixes) == 0
    with pytest.raises(DeviceError, match="closed"):
        warm.decide(asked[0])


def test_a_salt_finds_its_own_states_only(demo: Path) -> None:
    with Engine.load(str(demo), EngineConfig(prefix_cache_mib=8)) as engine:
        body, salted = request(STATES[0]), request(STATES[0], cache_salt="mine")
        first = engine.decide(salted)
        for other in (body, request(STATES[0], cache_salt="yours")):
            assert hits(engine.decide(other)) == 0
            assert hits(engine.decide(other)) > 0
        again = engine.decide(salted)
        assert hits(first) == 0 < hits(again)
        assert stable(first) == stable(again)


@pytest.mark.parametrize("family", ["open_jev", "cua_s1", "decider", "jemm", "jev_vl"])
def test_a_second_question_about_a_state_finds_it(tmp_path: Path, family: str) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", family=family)
    with Engine.load(str(folder), EngineConfig(prefix_cache_mib=8)) as engine:
        found = []
        for state in (STATES[0], STATES[0], STATES[0] + STATES[1]):
            criteria = {f"{len(found)}": None, "other": None}
            choice = {"type": "choice", "instructions": "Which?", "criteria": criteria}
            found.append(hits(engine.decide({"state": state, "questions": {"q": choice}})))
        tokens = len(engine.compile({"state": STATES[0], "questions": {"q": choice}}).token_ids[0])
        question_tokens = 200
        assert found[0] == 0 and min(found[1:]) > tokens - 64 - question_tokens > 0


def test_where_prompts_part_from_what_was_kept_is_kept_on_the_second_time(demo: Path) -> None:
    with Engine.load(str(demo), EngineConfig(prefix_cache_mib=8)) as engine:
        found = [hits(engine.decide(request(STATES[0] + end))) for end in ("a" * 80, "b" * 80, "c")]
        assert found[:2] == [0, 0] and found[2] > len(STATES[0]) - 64


def test_a_request_of_several_passes_reads_what_its_first_pass_kept(demo: Path) -> None:
    config = EngineConfig(prefix_cache_mib=8, max_batch_tokens=420)
    with Engine.load(str(demo), config) as small, Engine.load(str(demo)) as cold:
        body = request(STATES[0], "late", "sad", "new")
        answered = small.decide(body)
        assert stable(answered) == stable(cold.decide(body))
        assert hits(answered) > 0


def test_the_self_check_proves_states_on_the_device_and_leaves_none(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(prefix_cache_mib=8)
    with Engine.load(str(demo), config) as engine:
        facts = engine.health()["prefix_cache"]
        assert not any(value for key, value in facts.items() if key != "budget_mib")
        rows = {row.shape: row for row in self_check(engine.executor, full=False)}
        assert rows["keeping states"].passed and rows["on kept states"].passed
    with Engine.load(str(demo)) as engine:
        assert not any("states" in row.shape for row in self_check(engine.executor, full=False))
    keep_states = LayerCarry.keep_states

    def rounded(self: LayerCarry, x_RX: Tensor, slots_SVKD: Tensor) -> None:
        keep_states(self, x_RX, slots_SVKD.bfloat16().float())

    monkeypatch.setattr(LayerCarry, "keep_states", rounded)
    with pytest.raises(DeviceError, match="on kept states"):
        Engine.load(str(demo), config)


def test_a_plan_whose_state_went_is_made_again(demo: Path) -> None:
    with Engine.load(str(demo), EngineConfig(prefix_cache_mib=1)) as engine:
        work = engine.compile(request(STATES[0]))
        items = work.items(0, len(work.token_ids))
        cold: Pass = engine.run(engine.prepare(items))
        ahead = engine.prepare(items)
        assert engine.executor.states is not None
        prefixes = engine.executor.states.prefixes
        assert ahead.reuse is not None and ahead.reuse.trunks
        assert prefixes.reserve(prefixes.budget_bytes, ())
        assert len(prefixes) == 0
        prefixes.release(prefixes.budget_bytes)
        again = engine.run(ahead)
        assert again.reused_rows == 0 and again.rows == cold.rows
        ahead = engine.prepare(items)
        warm = engine.run(ahead)
        assert warm.reused_rows > 0 and warm.rows + warm.reused_rows == cold.rows
        for one in (again, warm):
            for found, expected in zip(one.logits, cold.logits, strict=True):
                assert np.array_equal(found, expected)


def test_nothing_is_kept_unless_asked_for(demo: Path) -> None:
    with Engine.load(str(demo)) as engine:
        body = request(STATES[0])
        assert hits(engine.decide(body)) == hits(engine.decide(body)) == 0
        assert engine.executor.states is None
        work = engine.compile(body)
        assert engine.prepare(work.items(0, 1)).reuse is None
