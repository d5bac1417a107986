"""JEV-VL: the raw prompt, slots with biases, wide labels, and its own body at /v1/decide."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from adjudge.errors import CheckpointError, InvalidRequest
from adjudge.families import Compiled
from adjudge.families.jev_vl import JevVl
from adjudge.tokenizer import Tokenizer
from adjudge.wire import (
    ChoiceAnswer,
    NoulAnswer,
    ScoreAnswer,
    decide_to,
    parse_decide,
    request_from,
)
from tests.family_cards import answer, card_for

BIASES = [0.25, -0.5, *[i / 8 for i in range(6)], *[i / 16 for i in range(16)]]


@pytest.fixture
def family(qwen: Tokenizer) -> JevVl:
    card = card_for("jev_vl", qwen)
    return JevVl(replace(card, calibration={**card.calibration, "biases": BIASES}), qwen)


def compiled(family: JevVl, question: Any, state: Any = "S") -> Compiled:
    return family.compile(request_from({"state": state, "questions": {"q": question}}))


def text(found: Compiled) -> str:
    (prompt,) = found.prompts
    return "".join(map(str, prompt.segments))


def test_choice_prompt(family: JevVl) -> None:
    question = {
        "type": "choice",
        "instructions": "Which?",
        "criteria": {"a": None, "b": "bee\nline", "c": {"é": 1}, "d": ""},
    }
    assert text(compiled(family, question, {"b": 1, "a": ["é"]})) == (
        '[kind] choice\n[state] {"b": 1, "a": ["é"]}\n[question] Which?\n[options]\n'
        'A) a\nB) b: bee\nline\nC) c: {"é": 1}\nD) d: \n[decision]:'
    )


def test_noul_prompt(family: JevVl) -> None:
    noul = {"type": "noul", "instructions": "Ok?"}
    assert text(compiled(family, noul)) == (
        "[kind] noul\n[state] S\n[question] Ok?\n[options]\nfalse\ntrue\n[decision]:"
    )
    sided = {**noul, "criteria": {"false": ["bad"], "true": "fine"}}
    assert '[question] Ok?\ntrue: fine\nfalse: ["bad"]\n[options]\nfalse\ntrue\n' in text(
        compiled(family, sided)
    )
    alone = {"type": "noul", "criteria": {"true": "fine"}}
    assert "[question] true: fine\n[options]\n" in text(compiled(family, alone))


def test_score_prompt(family: JevVl) -> None:
    numbers = {"type": "score", "instructions": "How?", "criteria": list("012345")}
    assert text(compiled(family, numbers)) == (
        "[kind] score\n[state] S\n[question] How?\n[options]\n0\n1\n2\n3\n4\n5\n[decision]:"
    )
    described = {**numbers, "criteria": ["calm", "1", "2", "3", "4", {"k": 5}]}
    assert '[question] How?\n0: calm\n1: 1\n2: 2\n3: 3\n4: 4\n5: {"k": 5}\n[options]\n0\n' in text(
        compiled(family, described)
    )
    for count in (5, 7):
        with pytest.raises(
            InvalidRequest, match=f"{count} levels; this model takes exactly 6. Give"
        ):
            compiled(family, {**numbers, "criteria": ["x"] * count})


def test_label_ids(family: JevVl, qwen: Tokenizer) -> None:
    noul = compiled(family, {"type": "noul", "instructions": "Ok?"})
    assert noul.prompts[0].readout.label_ids == (3721, 1802)
    score = compiled(family, {"type": "score", "criteria": list("012345")})
    assert score.prompts[0].readout.label_ids == tuple(range(15, 21))
    options = {f"o{i}": None for i in range(257)}
    with pytest.raises(InvalidRequest, match="257 options; this model takes 2 to 256"):
        compiled(family, {"type": "choice", "criteria": options})
    options.popitem()
    wide = compiled(family, {"type": "choice", "criteria": options})
    ids = wide.prompts[0].readout.label_ids
    assert ids is not None and len(ids) == 256
    assert (ids[:3], ids[26], ids[254:]) == ((32, 33, 34), 5840, (78382, 213977))
    assert "\nZ) o25\nAA) o26\n" in text(wide) and text(wide).endswith("\nJU) o255\n[decision]:")
    assert not wide.prompts[0].readout.rounded
    (row,) = qwen.encode_prompts(noul.prompts)
    assert row[-1] == qwen.encode_many(["]:"])[0][0]


def softmax(values: list[float]) -> list[float]:
    weights = [math.exp(value) for value in values]
    return [weight / sum(weights) for weight in weights]


def test_biases_before_temperatures(family: JevVl) -> None:
    noul = compiled(family, {"type": "noul", "instructions": "Ok?"})
    p = softmax([(0.5 + 0.25) / 1.0143, (1.0 - 0.5) / 1.0143])
    assert answer(family, noul, [[0.5, 1.0]]).answers["q"] == NoulAnswer(
        noul=pytest.approx(p[1], abs=1e-15)
    )

    score = compiled(family, {"type": "score", "criteria": list("abcdef")})
    p = softmax([(1.0 + bias) / 1.0036 for bias in BIASES[2:8]])
    rated = answer(family, score, [[1.0] * 6]).answers["q"]
    assert isinstance(rated, ScoreAnswer)
    assert list(rated.probabilities.values()) == pytest.approx(p, abs=1e-15)
    assert rated.score == pytest.approx(sum(i * x for i, x in enumerate(p)))
    assert rated.legend == dict(zip("012345", "abcdef", strict=True))

    choice = compiled(family, {"type": "choice", "criteria": {f"o{i}": None for i in range(18)}})
    p = softmax([(1.0 + bias) / 1.0161 for bias in [*BIASES[8:], 0.0, 0.0]])
    chosen = answer(family, choice, [[1.0] * 18]).answers["q"]
    assert isinstance(chosen, ChoiceAnswer)
    assert chosen.choice == "o15"
    assert list(chosen.probabilities.values()) == pytest.approx(p, abs=1e-15)
    assert chosen.confidence == pytest.approx((max(p) - 1 / 18) / (1 - 1 / 18))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"verbalizer_ids": list(range(24))}, "other tokens than this tokenizer"),
        ({"verbalizer_ids": [1] * 24}, "24 different token ids"),
        ({"biases": [0.0] * 23}, "gives 24 and 23"),
        ({"biases": [float("nan"), *[0.0] * 23]}, "finite biases"),
        ({"temperatures": {"noul": 1.0, "choice": 1.0}}, r"calibration\.json, score: temperature"),
    ],
)
def test_calibration_is_checked(
    family: JevVl, qwen: Tokenizer, change: dict[str, Any], message: str
) -> None:
    calibration = {**family.card.calibration, **change}
    with pytest.raises(CheckpointError, match=message):
        JevVl(replace(family.card, calibration=calibration), qwen)


def decide(family: JevVl, body: Any, logits: list[float]) -> tuple[str, dict[str, Any]]:
    request = parse_decide(json.dumps(body).encode())
    found = family.compile(request)
    return text(found), decide_to(request, answer(family, found, [logits]))


def test_decide_choice(family: JevVl) -> None:
    body = {"kind": "choice", "state": {"k": 1}, "question": "Which?", "options": ["b", "a: x"]}
    prompt, got = decide(family, body, [0.0, 3.0])
    assert prompt == (
        '[kind] choice\n[state] {"k": 1}\n[question] Which?\n[options]\nA) b\nB) a: x\n[decision]:'
    )
    p = softmax([0.0, (3.0 + 1 / 16) / 1.0161])
    assert got.pop("probabilities") == pytest.approx(p, abs=1e-15)
    assert got == {
        "kind": "choice",
        "effective_kind": "choice",
        "options": ["b", "a: x"],
        "choice_index": 1,
        "choice": "a: x",
        "adaptation": "native",
        "protocol": "jev27-bare-v1",
        "model": "house/jev_vl-Model",
        "usage": {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10},
        "num_model_requests": 1,
        "elapsed_seconds": 0.5,
    }


def test_decide_noul_and_score(family: JevVl) -> None:
    prompt, got = decide(family, {"kind": "noul", "state": "S", "question": "Ok?"}, [0.0, 3.0])
    assert prompt == "[kind] noul\n[state] S\n[question] Ok?\n[options]\nfalse\ntrue\n[decision]:"
    assert (got["options"], got["choice"]) == (["false", "true"], "true")
    assert sum(got["probabilities"]) == pytest.approx(1.0)
    parts = ["a", {"type": "text", "text": "b"}]
    prompt, got = decide(family, {"kind": "score", "state": parts, "question": ""}, [0.0] * 6)
    assert prompt.startswith("[kind] score\n[state] ab\n[question] \n[options]\n0\n1\n")
    assert (got["options"], got["choice"]) == (list("012345"), "5")


def test_decide_wide_labels(family: JevVl) -> None:
    body = {"kind": "choice", "question": "Q", "options": [str(i) for i in range(17)]}
    prompt, got = decide(family, body, [0.0] * 17)
    assert got["adaptation"] == "wide-labels"
    assert prompt.startswith("[kind] choice\n[state] \n[question] Q\n")


@pytest.mark.parametrize(
    "body, loc",
    [
        ([], ("body",)),
        ({"question": "Q"}, ("body", "kind")),
        ({"kind": "box", "question": "Q"}, ("body", "kind")),
        ({"kind": ["noul"], "question": "Q"}, ("body", "kind")),
        ({"kind": "noul"}, ("body", "question")),
        ({"kind": "noul", "question": {"a": 1}}, ("body", "question")),
        ({"kind": "noul", "question": "Q", "state": None}, ("body", "state")),
        ({"kind": "noul", "question": "Q", "state": 3}, ("body", "state")),
        ({"kind": "noul", "question": "Q", "state": [{"image": "x"}]}, ("body", "state", 0)),
        ({"kind": "noul", "question": "Q", "model": 3}, ("body", "model")),
        ({"kind": "noul", "question": "Q", "cache_salt": ""}, ("body", "cache_salt")),
        ({"kind": "choice", "question": "Q"}, ("body", "options")),
        ({"kind": "choice", "question": "Q", "options": []}, ("body", "options")),
        ({"kind": "choice", "question": "Q", "options": ["a", 1]}, ("body", "options")),
        ({"kind": "choice", "question": "Q", "options": ["a", "a"]}, ("body", "options")),
    ],
)
def test_decide_refusals(body: Any, loc: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_decide(json.dumps(body).encode())
    assert caught.value.details[0].loc == loc
