"""Made requests have the lengths they claim, counted by the tokenizers themselves."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files

import pytest

from adjudge.families import ModelCard
from adjudge.families.open_jev import OpenJev
from adjudge.proof.prose import Vocabulary
from adjudge.proof.workloads import WORKLOADS, Case, make_workload
from adjudge.tokenizer import Tokenizer
from adjudge.wire import parse_request

FAMILY = OpenJev(ModelCard(name="open-jev", family="open_jev", calibration={"temperature": 1.0}))
SHAPE = json.loads(files("adjudge.proof").joinpath("public231_shape.json").read_text())


def prompt_lengths(case: Case, tokenizer: Tokenizer) -> list[int]:
    compiled = FAMILY.compile(parse_request(case.body))
    return [len(ids) for ids in tokenizer.encode_prompts(compiled.prompts)]


@pytest.fixture
def tokenizers(qwen: Tokenizer, byte_level: Tokenizer) -> dict[Vocabulary, Tokenizer]:
    return {"qwen": qwen, "bytes": byte_level}


@pytest.mark.parametrize("vocabulary", ["qwen", "bytes"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_longest_prompt_has_the_claimed_tokens(
    name: str, vocabulary: Vocabulary, tokenizers: dict[Vocabulary, Tokenizer]
) -> None:
    for case in make_workload(name, vocabulary, 3).cases:
        lengths = prompt_lengths(case, tokenizers[vocabulary])
        assert max(lengths) == case.tokens
        assert len(lengths) == case.num_candidates


def test_public231_has_the_published_shape(qwen: Tokenizer) -> None:
    cases = make_workload("public-231", "qwen", 0).cases
    assert len(cases) == SHAPE["requests"] == 231
    assert sum(case.num_candidates for case in cases) == SHAPE["candidates"] == 775
    found: Counter[tuple[str, int]] = Counter()
    for case in cases:
        (question,) = case.request["questions"].values()
        longest = max(prompt_lengths(case, qwen))
        group = next(
            i for i, g in enumerate(SHAPE["groups"]) if g["tokens"][0] <= longest <= g["tokens"][1]
        )
        found[question["type"], group] += 1
    for i, group in enumerate(SHAPE["groups"]):
        for kind in ("choice", "noul", "score"):
            assert found[kind, i] == group[kind]


def test_a_workload_is_the_same_everywhere() -> None:
    assert make_workload("public-231", "qwen", 0).digest == (
        "42b6bdbb73b44adf32c0191b951c2a97c591acc1a667f061f5967e2535823378"
    )
    assert make_workload("m1", "qwen", 0).digest != make_workload("m1", "qwen", 1).digest


def test_page_state_and_m_workloads_have_their_sizes() -> None:
    page = make_workload("page-state", "qwen", 0).cases
    assert [case.num_questions for case in page] == [50]
    many = make_workload("m2", "qwen", 0).cases
    assert all(4 <= case.num_questions <= 12 for case in many)
    assert all(7 <= case.num_candidates <= 50 for case in many)
    counts = {case.id: case.num_candidates for case in make_workload("m1", "qwen", 0).cases}
    assert counts["3072+255"] == 255
    assert len(counts) == 15
    assert [c.num_candidates for c in make_workload("m3", "qwen", 0).cases] == [5, 10] * 5


def test_a_sample_is_spread_and_says_so() -> None:
    whole = make_workload("public-231", "bytes", 0)
    part = whole.sample(10)
    assert len(part.cases) == 10
    assert part.name == "public-231, 10 of 231 requests"
    assert [whole.cases.index(case) for case in part.cases] == [23 * i for i in range(10)]
    assert whole.sample(500) is whole
