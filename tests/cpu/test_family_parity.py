"""Each family against a straightforward implementation on transformers: equal probabilities."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adjudge import Engine, EngineConfig
from adjudge.checkpoint.make import write_checkpoint
from adjudge.config import AdapterMode
from adjudge.engine_door import Item
from adjudge.families import FAMILIES as TABLE
from tests.reference_families import ADAPTERS, FAMILIES, Reference

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers and PEFT warn of what they lack
    pytest.mark.usefixtures("quiet_transformers"),
]

MOST_DIFFERENCE = 1e-6
"""Of a probability, FP32."""

STATES: list[Any] = [
    "The parcel is two weeks late, and nobody answers the phone.\n",
    {"rows": [{"id": i, "ok": i % 3 == 0} for i in range(9)], "tags": ["é", None], "a": 1.5},
]
QUESTIONS: dict[str, dict[str, Any]] = {
    "few": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"ship": 'says "late"', "bill": None, "other": {"k": [1, "é"]}},
    },
    "many": {
        "type": "choice",
        "instructions": "Which of these?",
        "criteria": {f"option {i}": None if i % 2 else f"described {i}" for i in range(18)},
    },
    "plain": {"type": "noul", "instructions": "Is it late?"},
    "sided": {
        "type": "noul",
        "instructions": "Is it late?",
        "criteria": {"true": "weeks", "false": "days"},
    },
    "levels": {"type": "score", "instructions": "How late?", "criteria": [*"abcdef"]},
    "digits": {"type": "score", "instructions": "How late?", "criteria": [*"012345"]},
}
CASES: list[tuple[str, AdapterMode, bool]] = [
    ("open_jev", "auto", True),
    ("open_jev", "unmerged", False),
    ("cua_s1", "auto", True),
    ("cua_s1", "unmerged", False),
    ("decider", "auto", True),
    ("jemm", "auto", False),
    ("jemm", "merged", True),
    ("jev_vl", "auto", True),
    ("jev_vl", "unmerged", False),
]
"""Family, the setting `adapter`, and whether that merges."""


def test_every_family_has_a_reference_and_a_case() -> None:
    assert set(FAMILIES) == set(ADAPTERS) == set(TABLE)
    assert {family for family, *_ in CASES} == set(TABLE)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("families")
    return {family: write_checkpoint(place / family, family=family) for family in FAMILIES}


def reference(folder: Path, family: str, *, merged: bool) -> Reference:
    place = ADAPTERS[family]
    return Reference(folder, None if place is None else folder / place, merged=merged)


def probabilities(answer: dict[str, Any], family: str) -> list[float]:
    """In the order of the implementation that is compared with."""
    if answer["type"] != "noul":
        return list(answer["probabilities"].values())
    sides = [1 - answer["noul"], answer["noul"]]
    return sides[::-1] if family == "jemm" else sides


@pytest.mark.parametrize("family, adapter, merged", CASES)
def test_probabilities(
    folders: dict[str, Path], family: str, adapter: AdapterMode, merged: bool
) -> None:
    config = EngineConfig(device="cpu", dtype="float32", adapter=adapter, self_check=False)
    engine = Engine.load(str(folders[family]), config)
    peer = reference(folders[family], family, merged=merged)
    # Decider shows four decimals.
    most = MOST_DIFFERENCE + (5e-5 if family == "decider" else 0)
    questions = {
        name: question
        for name, question in QUESTIONS.items()
        if question["type"] in engine.family.limits.answers
    }
    for state in STATES:
        answers = engine.decide({"state": state, "questions": questions})["answers"]
        for name, question in questions.items():
            expected = FAMILIES[family](peer, state, question)
            found = probabilities(answers[name], family)
            assert np.abs(np.subtract(found, expected)).max() <= most, (name, found, expected)
            assert max(expected) < 0.99, "a test of certain answers would see little"
    engine.close()


@pytest.mark.parametrize("kind", ["few", "many", "sided", "levels"])
def test_decider_before_its_rounding(folders: dict[str, Path], kind: str) -> None:
    """The logits of the pass, under the question's temperature, for want of more decimals."""
    engine = Engine.load(str(folders["decider"]), EngineConfig(device="cpu", self_check=False))
    peer = reference(folders["decider"], "decider", merged=False)
    question = QUESTIONS[kind]
    work = engine.compile({"state": STATES[1], "questions": {"q": question}})
    items = [
        Item(ids, p.readout) for ids, p in zip(work.token_ids, work.compiled.prompts, strict=True)
    ]
    temperature = engine.card.calibration["temperature_by_type"][question["type"]]
    rows = []
    for logits in engine.run(engine.prepare(items)).logits:
        weights = np.exp(logits.astype(np.float64) / temperature)
        rows.append(weights / weights.sum())
    fits = [row[1] for row in rows]
    found = np.divide(fits, math.fsum(fits)) if question["type"] == "score" else rows[0]
    expected = FAMILIES["decider"](peer, STATES[1], question)
    assert np.abs(found - expected).max() <= MOST_DIFFERENCE
    engine.close()


@pytest.mark.parametrize("family", ["cua_s1", "decider", "jemm", "jev_vl"])
def test_logits_of_a_bf16_model_are_rounded_where_its_head_rounds(
    folders: dict[str, Path], family: str
) -> None:
    """The hidden state's product with the labels' rows, once to BF16 in two of the families."""
    import torch

    config = EngineConfig(device="cpu", dtype="bfloat16", self_check=False)
    engine = Engine.load(str(folders[family]), config)
    peer = reference(folders[family], family, merged=True)
    work = engine.compile({"state": STATES[0], "questions": {"q": QUESTIONS["many"]}})
    readout = work.compiled.prompts[0].readout
    plan = engine.prepare([Item(work.token_ids[0], readout)])
    hidden = engine.executor.hidden(plan.layout)[0].double()
    exact = (peer.head[list(readout.label_ids or ())].double() @ hidden).float()
    found = torch.from_numpy(engine.run(plan).logits[0])
    rounded = found.bfloat16().float().equal(found)
    assert rounded == (family in ("cua_s1", "decider"))
    torch.testing.assert_close(found, exact, rtol=2**-8 if rounded else 0, atol=1e-6)
    engine.close()
