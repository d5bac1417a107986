"""What all families have in common: the table, segments, labels, diagnostics, refusals."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from string import ascii_uppercase
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adjudge.errors import CheckpointError, InvalidRequest, UsageError
from adjudge.families import (
    FAMILIES,
    Compiled,
    Limits,
    ModelCard,
    Readout,
    cua_s1,
    family_class,
    family_for,
    jemm,
)
from adjudge.families.labels import LETTERS, checked_label_ids, letter_labels, read_labels
from adjudge.tokenizer import Tokenizer
from adjudge.wire import Request, request_from, response_to
from tests.family_cards import answer, card_for


def zeros(compiled: Compiled) -> list[list[float]]:
    """Logits of the right shape for each prompt."""
    return [
        [0.0] * (len(prompt.readout.label_ids or "1") + prompt.readout.mass)
        for prompt in compiled.prompts
    ]


def choice_request(state: Any = "S", **extra: Any) -> Request:
    question = {"type": "choice", "instructions": "Q?", "criteria": {"a": None, "b": "bee"}}
    return request_from({"state": state, "questions": {"q": question}, **extra})


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_of_the_table(name: str, qwen: Tokenizer, byte_level: Tokenizer) -> None:
    for tokenizer in (qwen, byte_level):
        family = family_for(card_for(name, tokenizer), tokenizer)
        assert isinstance(family, family_class(name))
        assert family.limits == family_class(name).limits_for(family.card)
        compiled = family.compile(choice_request(model=f"{name}-model"))
        body = response_to(answer(family, compiled, zeros(compiled)))
        assert list(body) == ["model", "answers", "usage", "x_metadata"]
        assert list(body["answers"]["q"]["probabilities"]) == ["a", "b"]
        assert body["answers"]["q"]["choice"] == "a"
        assert body["x_metadata"]["inference_seconds"] == 0.5
        with pytest.raises(UsageError, match="not loaded here"):
            family.compile(choice_request(model="another"))
        narrow = replace(family.limits, max_questions=1, max_candidates=1)
        with pytest.raises(UsageError, match="2 candidates; the limit is 1"):
            family_for(family.card, tokenizer, narrow).compile(choice_request())
        with pytest.raises(InvalidRequest, match="reads text only"):
            family.compile(choice_request(assets={"img": {"part": "asset-0"}}))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("place", ["key", "description"])
def test_long_options_that_differ_at_their_end_stay_different(
    name: str, place: str, qwen: Tokenizer
) -> None:
    family = family_for(card_for(name, qwen), qwen)
    long = "a parcel that did not arrive " * 60
    options = [f"{long}in {month}" for month in ("March", "April", "June")]
    if place == "key":
        criteria: dict[str, Any] = dict.fromkeys(options)
    else:
        criteria = dict(zip("abc", options, strict=True))
    question = {"type": "choice", "instructions": "Q?", "criteria": criteria}
    compiled = family.compile(request_from({"state": "S", "questions": {"q": question}}))
    rows = qwen.encode_prompts(compiled.prompts)
    texts = [qwen._inner.decode(row.tolist(), skip_special_tokens=False) for row in rows]
    for option in options:
        assert any(option in text for text in texts)
    assert len(set(texts)) == len(texts)
    body = response_to(answer(family, compiled, zeros(compiled)))
    assert list(body["answers"]["q"]["probabilities"]) == list(criteria)


def test_limits_of_each_family(qwen: Tokenizer) -> None:
    default = Limits()
    told = {
        name: {
            field.name: getattr(limits, field.name)
            for field in fields(Limits)
            if getattr(limits, field.name) != getattr(default, field.name)
        }
        for name in FAMILIES
        if (limits := family_class(name).limits_for(card_for(name, qwen)))
    }
    assert told == {
        "open_jev": {},
        "cua_s1": {
            "answers": ("choice",), "max_prompt_tokens": 16_384,
            "max_questions": 64, "max_options": 26,
        },
        "decider": {
            "aliases": True, "max_prompt_tokens": 36_864, "min_options": 2, "min_levels": 2,
            "max_prompts": 1024, "max_request_tokens": 1_048_576, "max_body_bytes": 8 << 20,
        },
        "jemm": {
            "max_prompt_tokens": 8192, "max_questions": 64,
            "min_options": 2, "max_options": 32, "min_levels": 2, "max_levels": 32,
        },
        "jev_vl": {
            "max_prompt_tokens": 16_384,
            "min_options": 2, "max_options": 256, "min_levels": 6, "max_levels": 6,
        },
    }  # fmt: skip


def test_constants_are_the_bytes_that_the_models_were_trained_on() -> None:
    def digest(text: str) -> tuple[int, str]:
        data = text.encode()
        return len(data), hashlib.sha256(data).hexdigest()

    assert digest(cua_s1.SYSTEM) == (
        331,
        "7916645b0ea961e496a7feb506714da296c28a665facc888391a1376c3f47137",
    )
    assert digest(jemm.SYSTEM) == (
        119,
        "12ee19a0dfdfa3f8398f006c9664a3e2cd4d74b105a3d4639e99b4d683418d69",
    )


AWKWARD = [
    "", " ", "\n", "\r\n", "\t \n", "\u2028", "\u0301", "e\u0301", "\u0338", "\ufb01", "\u1161",
    "\u05e9", "\u732b", "\U0001f469\u200d\U0001f467", "<|im_end|>", "<|im_", "<think>", "]", "[",
    "[decision]:", ":", "!", "a", "A.", "7", "'s", "\x1c", "\x00", "\ufeff",
]  # fmt: skip
texts = st.lists(st.sampled_from(AWKWARD) | st.text(max_size=3), max_size=6).map("".join)
values = texts | st.lists(texts, max_size=2) | st.dictionaries(texts, texts, max_size=2)


@pytest.mark.parametrize("name", ["cua_s1", "jemm", "jev_vl"])
@given(
    state=values,
    instructions=values,
    criteria=st.dictionaries(texts, st.none() | values, min_size=2, max_size=4),
)
@settings(max_examples=150)
def test_segments_equal_the_whole_prompt(
    qwen: Tokenizer, name: str, state: Any, instructions: Any, criteria: Any
) -> None:
    family = family_for(card_for(name, qwen), qwen)
    question = {"type": "choice", "instructions": instructions, "criteria": criteria}
    compiled = family.compile(request_from({"state": state, "questions": {"q": question}}))
    (prompt,) = compiled.prompts
    (by_segment,) = qwen.encode_prompts(compiled.prompts)
    (whole,) = qwen.encode_many(["".join(map(str, prompt.segments))])
    np.testing.assert_array_equal(by_segment, whole)


@pytest.mark.parametrize("name", ["cua_s1", "decider", "jemm", "jev_vl"])
def test_label_mass_on_request(name: str, qwen: Tokenizer) -> None:
    family = family_for(card_for(name, qwen), qwen)
    plain = family.compile(choice_request())
    asked = family.compile(choice_request(x_diagnostics=True))
    assert [p.segments for p in plain.prompts] == [p.segments for p in asked.prompts]
    assert not plain.prompts[0].readout.mass and asked.prompts[0].readout.mass
    logits = [1.0, 2.0]
    total = math.log(math.exp(1.0) + math.exp(2.0) + 30.0)
    without = response_to(answer(family, plain, [logits]))["answers"]["q"]
    body = response_to(answer(family, asked, [[*logits, total]]))["answers"]["q"]
    mass = body.pop("x_label_mass")
    assert body == without
    assert mass == pytest.approx(1 - 30.0 / math.exp(total), abs=1e-6)


def test_label_mass_is_a_share() -> None:
    assert read_labels(np.float32([0.0, 1.0]), Readout((1, 2))) == ([0.0, 1.0], None)
    values, mass = read_labels(np.float32([1.0, 0.9999]), Readout((1,), mass=True))
    assert (values, mass) == ([1.0], 1.0)


def test_labels_must_be_one_token_where_they_are_read(qwen: Tokenizer) -> None:
    assert checked_label_ids(qwen, "AB", "\n\n") == (32, 33)
    with pytest.raises(CheckpointError, match="'AZQ' is not one token"):
        checked_label_ids(qwen, ["A", "AZQ"], "\n\n")
    with pytest.raises(CheckpointError, match="'A' is not one token"):
        checked_label_ids(qwen, ["A"], "Answer: ")
    with pytest.raises(CheckpointError, match="'s' is not one token"):
        checked_label_ids(qwen, ["s"], "The answer'")
    with pytest.raises(CheckpointError, match="'th' is not one token"):
        checked_label_ids(qwen, ["th"], "abs")  # one token more, but "abs" became another
    with pytest.raises(CheckpointError, match="same token"):
        checked_label_ids(qwen, ["A", "A"], "\n\n")


def test_letter_labels(qwen: Tokenizer, byte_level: Tokenizer) -> None:
    labels = letter_labels(qwen, 255)
    assert list(labels)[:28] == [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "AA", "AB"]
    assert list(labels.values())[:26] == list(range(32, 58))
    assert list(labels.items())[-1] == ("JT", 78382)
    assert list(letter_labels(byte_level, 255)) == list(labels)
    assert list(letter_labels(qwen, 256, "x\n{}) y"))[-1] == "JU"
    pairs = [first + second for first in ascii_uppercase for second in ascii_uppercase]
    single = [pair for pair in pairs if len(qwen.encode_many([pair])[0]) == 1]
    assert (*ascii_uppercase, *single[:230]) == LETTERS


class Without:
    """A tokenizer that takes one label apart."""

    def __init__(self, tokenizer: Tokenizer, label: str) -> None:
        self.tokenizer = tokenizer
        self.label = label

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        found = self.tokenizer.encode_many(texts)
        apart = np.concatenate(self.tokenizer.encode_many(list(self.label)))
        return [
            apart if text == self.label else row for text, row in zip(texts, found, strict=True)
        ]


@pytest.mark.parametrize("family", ["decider", "jev_vl"])
@pytest.mark.parametrize("label", ["AA", "JS"])
def test_a_tokenizer_without_one_label_is_refused_by_its_name(
    family: str, label: str, qwen: Tokenizer
) -> None:
    """Rather than that all labels after it shift."""
    with pytest.raises(CheckpointError, match=f"the label '{label}' is not one token"):
        family_for(card_for(family, qwen), Without(qwen, label))


def test_a_foreign_tokenizer_is_refused() -> None:
    class Syllables:
        """Two tokens a character."""

        def encode_many(self, texts: Any) -> list[np.ndarray]:
            return [
                np.repeat(np.frombuffer(t.encode(), np.uint8), 2).astype(np.int32) for t in texts
            ]

    for name in ("cua_s1", "decider", "jemm", "jev_vl"):
        card = ModelCard(name="m", family=name, calibration={"temperature": 1.0})
        with pytest.raises(CheckpointError):
            family_for(card, Syllables())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_answers_json(name: str, qwen: Tokenizer) -> None:
    family = family_for(card_for(name, qwen), qwen)
    compiled = family.compile(choice_request(state={"k": [1]}))
    json.dumps(response_to(answer(family, compiled, zeros(compiled))))


EMPTY = [
    ("open_jev", {"a": "", "b": None}, ["Proposed answer: a: \n", "Proposed answer: b\n"]),
    ("cua_s1", {"a": "", "b": None}, ['A. Decision "" -> ', 'B. Decision "b" -> ']),
    ("decider", {"a": "", "b": None}, ["(A) a\n(B) b\n"]),
    ("jemm", {"a": "", "b": None}, ["A) a\nB) b\n"]),
    ("jev_vl", {"a": "", "b": None}, ["A) a: \nB) b\n"]),
    ("open_jev", None, ["Yes means: \n"]),
    ("decider", None, ["(A) no\n(B) yes: y\n"]),
    ("jemm", None, ["A) y\nB) no\n"]),
    ("jev_vl", None, ["true: y\nfalse: \n"]),
    ("jemm", ["", "b"], ["A) level 0\nB) b\n"]),
]


@pytest.mark.parametrize("name, criteria, shown", EMPTY)
def test_empty_text_becomes_what_the_page_says(
    name: str, criteria: Any, shown: list[str], qwen: Tokenizer
) -> None:
    """None: a noul with an empty side."""
    family = family_for(card_for(name, qwen), qwen)
    kinds = {dict: "choice", list: "score", type(None): "noul"}
    question = {"type": kinds[type(criteria)], "instructions": "Q?", "criteria": criteria}
    if criteria is None:
        yes = "" if name == "open_jev" else "y"
        question["criteria"] = {"true": yes, "false": None if name == "open_jev" else ""}
    compiled = family.compile(request_from({"state": "S", "questions": {"q": question}}))
    rows = qwen.encode_prompts(compiled.prompts)
    texts = "|".join(qwen._inner.decode(row.tolist(), skip_special_tokens=False) for row in rows)
    for part in shown:
        assert part in texts, texts
