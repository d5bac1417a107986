"""JEMM: the chat turn byte by byte, flattened texts, 32 labels, one temperature."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from adjudge.errors import CheckpointError, InvalidRequest, UsageError
from adjudge.families import Compiled
from adjudge.families.jemm import SYSTEM, Jemm
from adjudge.tokenizer import Tokenizer
from adjudge.wire import ChoiceAnswer, NoulAnswer, ScoreAnswer, request_from
from tests.family_cards import answer, card_for

T = 1.3480874159655591
HEAD = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.fixture
def family(qwen: Tokenizer) -> Jemm:
    return Jemm(card_for("jemm", qwen), qwen)


def compiled(family: Jemm, question: Any, state: Any = "S") -> Compiled:
    return family.compile(request_from({"state": state, "questions": {"q": question}}))


def user(found: Compiled) -> str:
    (prompt,) = found.prompts
    text = "".join(map(str, prompt.segments))
    assert text.startswith(HEAD) and text.endswith(TAIL)
    return text[len(HEAD) : -len(TAIL)]


def test_choice(family: Jemm) -> None:
    question = {
        "type": "choice",
        "instructions": " Which\n\ttool? ",
        "criteria": {"a": "First\u00a0 one ", "b b": None, "c": {"é": [1, None, True]}, "d": ""},
    }
    assert user(compiled(family, question, {"b": [1, 2.0], "a": "é "})) == (
        'State:\n{"b":[1,2.0],"a":"é "}\n\n'
        "Question: Which tool?\n\n"
        "Candidates:\nA) First one\nB) b b\nC) {'é': [1, None, True]}\nD) d\n\n"
        "Answer with exactly one candidate label."
    )


def test_score_and_noul(family: Jemm) -> None:
    score = {"type": "score", "criteria": ["low", ["mid"], ""]}
    assert user(compiled(family, score, "\n text\n ")) == (
        "State:\ntext\n\nQuestion: \n\nCandidates:\nA) low\nB) ['mid']\nC) level 2\n\n"
        "Answer with exactly one candidate label."
    )
    noul = {"type": "noul", "instructions": {"ask": "ok"}}
    assert user(compiled(family, noul)).endswith(
        "Question: {'ask': 'ok'}\n\nCandidates:\nA) yes\nB) no\n\n"
        "Answer with exactly one candidate label."
    )
    sided = {**noul, "criteria": {"false": "not  ok"}}
    assert "\nA) yes\nB) not ok\n" in user(compiled(family, sided))


def test_labels(family: Jemm, qwen: Tokenizer) -> None:
    options = {f"o{i}": None for i in range(33)}
    with pytest.raises(InvalidRequest, match="there are 33 options; this model takes 2 to 32"):
        compiled(family, {"type": "choice", "criteria": options})
    options.popitem()
    found = compiled(family, {"type": "choice", "criteria": options})
    ids = (*range(32, 58), *range(15, 21))
    assert found.prompts[0].readout.label_ids == ids
    assert not found.prompts[0].readout.rounded
    assert "\nZ) o25\n0) o26\n" in user(found) and user(found).count("\n5) o31\n") == 1
    (row,) = qwen.encode_prompts(found.prompts)
    assert row[-9:].tolist() == [248046, 198, 248045, 74455, 198, 248068, 271, 248069, 271]
    with pytest.raises(InvalidRequest, match="there is 1 option"):
        compiled(family, {"type": "choice", "criteria": {"a": None}})
    with pytest.raises(InvalidRequest, match="there is 1 level"):
        compiled(family, {"type": "score", "criteria": ["a"]})


def test_sixty_four_questions(family: Jemm) -> None:
    noul = {"type": "noul", "instructions": "Ok?"}
    with pytest.raises(UsageError, match="asks 65 questions; the limit is 64"):
        family.compile(request_from({"state": "S", "questions": {str(i): noul for i in range(65)}}))


def test_answers(family: Jemm) -> None:
    logits = [1.0, -1.0]
    p = 1 / (1 + math.exp(-2.0 / T))
    choice = compiled(family, {"type": "choice", "criteria": {"x": None, "y": "d"}})
    got = answer(family, choice, [logits])
    assert got.model == "house/jemm-Model"
    assert got.metadata == {"temperature": T, "inference_seconds": 0.5}
    first = got.answers["q"]
    assert isinstance(first, ChoiceAnswer)
    assert (first.choice, first.probabilities["x"]) == ("x", pytest.approx(p, abs=1e-15))
    assert first.confidence == max(first.probabilities.values())

    noul = answer(family, compiled(family, {"type": "noul", "instructions": "Ok?"}), [logits])
    assert noul.answers["q"] == NoulAnswer(noul=first.probabilities["x"])

    score = {"type": "score", "criteria": ["low", {"k": 1}]}
    rated = answer(family, compiled(family, score), [logits]).answers["q"]
    assert isinstance(rated, ScoreAnswer)
    assert rated.legend == {"0": "low", "1": {"k": 1}}
    assert rated.score == rated.extra["x_expected_value"] == pytest.approx(1 - p, abs=1e-15)
    assert rated.confidence == pytest.approx(p, abs=1e-15)


def test_names_and_calibration(family: Jemm, qwen: Tokenizer) -> None:
    noul = {"type": "noul", "instructions": "Ok?"}
    for model in ("jemm", "house/jemm-Model", "jemm-model", "jev-latest"):
        family.compile(request_from({"model": model, "state": "S", "questions": {"q": noul}}))
    with pytest.raises(CheckpointError, match=r"decision_config\.json: temperature is None"):
        Jemm(replace(family.card, calibration={}), qwen)
