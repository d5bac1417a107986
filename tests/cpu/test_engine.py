"""The engine as callers see it: one path behind every door, and answers that stand alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from adjudge import Engine, EngineConfig, ServiceConfig
from adjudge.checkpoint.make import write_checkpoint
from adjudge.config import AdapterMode
from adjudge.dry_run import examine
from adjudge.engine import compiler
from adjudge.engine_door import Item, Pass, Work
from adjudge.errors import CheckpointError, ConfigError, DeviceError, InternalError, UsageError
from adjudge.forest import count_rows
from adjudge.heads import Vocabulary
from adjudge.models.qwen3_5 import Attention
from adjudge.wire import request_from, response_to

REQUEST: dict[str, Any] = {
    "state": "The parcel is two weeks late. " * 8,
    "questions": {
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
        "team": {
            "type": "choice",
            "instructions": "Who answers?",
            "criteria": {f"team {i}": None for i in range(9)},
        },
        "mood": {"type": "score", "criteria": ["calm", "annoyed", "furious"]},
    },
}


CHOICE_REQUEST: dict[str, Any] = {
    "state": "late",
    "questions": {
        "q": {"type": "choice", "instructions": "Who?", "criteria": {"a": None, "b": "bees"}}
    },
}


@pytest.fixture(scope="module")
def engine(demo: Path) -> Iterator[Engine]:
    loaded = Engine.load(str(demo), EngineConfig(device="cpu"))
    yield loaded
    loaded.close()


def items_of(work: Work, scope: int = 0) -> list[Item]:
    return [
        Item(ids, prompt.readout, scope)
        for ids, prompt in zip(work.token_ids, work.compiled.prompts, strict=True)
    ]


def stable(response: dict[str, Any]) -> dict[str, Any]:
    return {key: response[key] for key in ("model", "answers", "usage")}


def test_dict_in_dict_out_and_typed_agree(engine: Engine) -> None:
    answered = engine.decide(REQUEST)
    assert list(answered["answers"]) == ["urgent", "team", "mood"]
    typed = engine.decide(request_from(REQUEST))
    assert stable(response_to(typed)) == stable(answered)
    assert answered["x_metadata"]["prefix_cache"]["saved_tokens"] > 0


def test_questions_alone_answer_as_together(engine: Engine) -> None:
    together = engine.decide(REQUEST)["answers"]
    for name, question in REQUEST["questions"].items():
        alone = engine.decide({**REQUEST, "questions": {name: question}})["answers"]
        assert alone[name] == together[name]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("company", [2, 3, 20, 72])
def test_a_prompt_has_the_same_bits_alone_and_in_company(
    demo: Path, dtype: Literal["float32", "bfloat16"], company: int
) -> None:
    engine = Engine.load(str(demo), EngineConfig(device="cpu", dtype=dtype))
    questions = {
        name: REQUEST["questions"]["mood"] | {"instructions": f"How {name}?"} for name in "abc"
    }
    items = [
        item
        for i in range(8)
        for item in items_of(
            engine.compile({"state": f"State {i % 3}. " * (1 + i % 5), "questions": questions})
        )
    ]
    for start in range(0, len(items), company):
        group = items[start : start + company]
        together = engine.run(engine.prepare(group)).logits
        for item, logits in zip(group, together, strict=True):
            assert np.array_equal(engine.run(engine.prepare([item])).logits[0], logits)
    engine.close()


def test_a_request_larger_than_a_pass_is_split_and_equal(
    demo: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Engine.load(str(demo), EngineConfig(device="cpu", max_batch_tokens=420))
    work = small.compile(REQUEST)
    assert count_rows(work.token_ids) > small.max_rows
    passes: list[Pass] = []
    run = small.run
    monkeypatch.setattr(small, "run", lambda plan: passes.append(run(plan)) or passes[-1])
    assert stable(small.decide(REQUEST)) == stable(engine.decide(REQUEST))
    assert len(passes) > 1
    assert all(one.rows <= small.max_rows for one in passes)
    small.close()


def test_scopes_share_no_rows_and_change_no_bits(engine: Engine) -> None:
    work = engine.compile(REQUEST)
    shared = engine.run(engine.prepare(items_of(work)))
    apart = engine.run(
        engine.prepare([Item(i.token_ids, i.readout, n) for n, i in enumerate(items_of(work))])
    )
    assert shared.rows < apart.rows == work.prompt_tokens
    for one, other in zip(shared.logits, apart.logits, strict=True):
        assert np.array_equal(one, other)


def test_numbers_that_are_not_finite_answer_nobody_and_leave_nothing(demo: Path) -> None:
    """A weight of 0 for a prompt's neighbour does not hide a NaN of it: 0 · NaN is NaN."""
    engine = Engine.load(str(demo), EngineConfig(device="cpu", prefix_cache_mib=8))
    ids = np.arange(1, 101, dtype=np.int32)
    spoilt = np.concatenate([ids[:80], np.array([200, 7], np.int32)])
    readout = engine.compile(REQUEST).compiled.prompts[0].readout
    expected = engine.run(engine.prepare([Item(ids, readout)])).logits[0]
    with torch.inference_mode():
        engine.executor.model.embed_VH[200] = torch.nan
    for items in (
        [Item(spoilt, readout, 0, 64)],
        [Item(ids, readout, 0, 64), Item(spoilt, readout)],
    ):
        with pytest.raises(InternalError, match="not finite"):
            engine.run(engine.prepare(items))
        assert engine.health()["prefix_cache"]["states"] == 0
    for _ in range(2):
        found = engine.run(engine.prepare([Item(ids, readout, 0, 64)])).logits[0]
        assert np.array_equal(found, expected)
    assert engine.health()["prefix_cache"]["hit_tokens"] == 64
    engine.close()


def test_a_prompt_longer_than_a_pass_is_refused_and_the_next_answered(demo: Path) -> None:
    small = Engine.load(str(demo), EngineConfig(device="cpu", max_batch_tokens=128))
    with pytest.raises(UsageError, match="limit is 128"):
        small.decide(REQUEST)
    short = {**REQUEST, "state": "", "questions": {"q": {"type": "noul", "instructions": ""}}}
    assert small.decide(short)["answers"]["q"]["type"] == "noul"
    small.close()


def test_compiling_without_weights_equals_the_engine(demo: Path, engine: Engine) -> None:
    bare = compiler(EngineConfig(model=str(demo))).compile(REQUEST)
    for one, other in zip(bare.token_ids, engine.compile(REQUEST).token_ids, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("family", ["cua_s1", "decider", "jemm", "jev_vl"])
def test_every_family_answers(family: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", family=family)
    engine = Engine.load(str(folder), EngineConfig(device="cpu"))
    answer = engine.decide(CHOICE_REQUEST)["answers"]["q"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    with_mass = engine.decide({**CHOICE_REQUEST, "x_diagnostics": True})["answers"]["q"]
    assert 0 < with_mass.pop("x_label_mass") < 1
    assert with_mass == answer
    engine.close()


def test_label_mass_reads_the_vocabulary_once_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many sets of labels are asked for: a Decider request may have 254 of them."""
    folder = write_checkpoint(tmp_path / "checkpoint", family="decider")
    questions = {
        f"of {count}": {"type": "choice", "criteria": {f"{i}": None for i in range(count)}}
        for count in range(2, 9)
    }
    whole, read = Vocabulary.mass, []

    def counted(self: Vocabulary, hidden_QH: Tensor, dtype: torch.dtype) -> Tensor:
        read.append(len(hidden_QH))
        return whole(self, hidden_QH, dtype)

    monkeypatch.setattr(Vocabulary, "mass", counted)
    with Engine.load(str(folder), EngineConfig(device="cpu", self_check=False)) as engine:
        request = {"state": "late", "questions": questions, "x_diagnostics": True}
        together = engine.decide(request)["answers"]
        assert read == [len(questions)]
        for name, question in questions.items():
            alone = engine.decide({**request, "questions": {name: question}})["answers"]
            assert alone[name] == together[name]
            assert 0 < alone[name]["x_label_mass"] < 1


@pytest.mark.parametrize("counts", [range(2, 9), range(8, 1, -1)])
def test_label_rows_are_kept_once_for_all_that_begin_alike(counts: range, tmp_path: Path) -> None:
    """Kept for each number of options they would take 0.7 GB of a 27B's device."""
    folder = write_checkpoint(tmp_path / "checkpoint", family="jev_vl")
    with Engine.load(str(folder), EngineConfig(device="cpu", self_check=False)) as engine:
        vocabulary = engine.executor.heads.vocabulary
        for count in counts:
            criteria = {f"{i}": None for i in range(count)}
            engine.decide(
                {"state": "s", "questions": {"q": {"type": "choice", "criteria": criteria}}}
            )
        engine.decide({"state": "s", "questions": {"q": {"type": "noul", "instructions": "?"}}})
        assert sorted(map(len, vocabulary.kept)) == [2, 8]
        for ids, rows in vocabulary.kept.items():
            afresh = vocabulary.weights.rows(vocabulary.name, ids, device="cpu")
            assert torch.equal(rows, afresh)
            assert torch.equal(vocabulary.rows(ids[:1]), afresh[:1])


ADAPTERS = [
    ("open_jev", "auto", "merged"),
    ("open_jev", "unmerged", "unmerged"),
    ("cua_s1", "auto", "merged"),
    ("decider", "auto", "none"),
    ("jemm", "auto", "unmerged"),
    ("jemm", "merged", "merged"),
    ("jev_vl", "auto", "merged"),
]


@pytest.mark.parametrize("family, adapter, use", ADAPTERS)
def test_what_became_of_the_adapter_is_said(
    family: str, adapter: AdapterMode, use: str, tmp_path: Path
) -> None:
    """By default what the family's authors do; in health, in a dry run, and with each answer."""
    folder = write_checkpoint(tmp_path / "checkpoint", family=family)
    config = EngineConfig(model=str(folder), device="cpu", adapter=adapter)
    if adapter == "auto":
        assert config == EngineConfig(model=str(folder), device="cpu")
    with Engine.load(config=config) as engine:
        assert engine.health()["adapter"] == use
        attention = engine.executor.model.layers[3].mixer
        assert isinstance(attention, Attention)
        assert bool(attention.qkv_proj.deltas) == (use == "unmerged")
        answered = engine.decide(CHOICE_REQUEST)
    assert answered["x_metadata"]["adapter"] == use
    (found,) = examine({"": config}, ServiceConfig(port=0))["models"]
    assert found["adapter"] == use


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model is named"):
        Engine.load()
    with pytest.raises(ConfigError, match="leave one out"):
        Engine.load(str(tmp_path), EngineConfig(random="0.8b"))
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        Engine.load(str(tmp_path))


def test_a_closed_engine_says_so_and_closes_again(demo: Path) -> None:
    request = {"state": "", "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}
    with Engine.load(str(demo)) as closed:
        closed.decide(request)
    closed.close()
    with pytest.raises(DeviceError, match="closed"):
        closed.decide(request)
