"""Which engine a request's `model` means in a server of several, for every family's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adjudge.errors import UsageError
from adjudge.families import FAMILIES, family_class, family_for
from adjudge.service.engines import Engines
from adjudge.tokenizer import Tokenizer
from tests.family_cards import card_for

QUESTION = {"type": "choice", "instructions": "Q?", "criteria": {"a": None, "b": None}}


def door(family: str, tokenizer: Tokenizer, **changes: Any) -> Any:
    """What routing asks of an engine: its card and its family."""
    card = replace(card_for(family, tokenizer), **changes)
    return SimpleNamespace(card=card, family=family_for(card, tokenizer))


def means(engines: Engines, model: str | None) -> Any:
    """The engine of a name, whose family takes the request too."""
    found, request = engines.read({"state": "S", "questions": {"q": QUESTION}, "model": model})
    found.family.compile(request)
    return found


def model_said(one: Any) -> str:
    """The `model` of an answer."""
    _, request = Engines({"it": one}).read({"state": "S", "questions": {"q": QUESTION}})
    compiled = one.family.compile(request)
    logits = [np.zeros(len(p.readout.label_ids or "1"), np.float32) for p in compiled.prompts]
    said: str = one.family.answer(compiled, logits, [1] * len(logits), {}).model
    return said


@pytest.fixture(scope="module")
def doors(qwen: Tokenizer) -> Mapping[str, Any]:
    """An engine of every family, named by the operator."""
    return {f"my-{family}": door(family, qwen) for family in FAMILIES}


def test_what_a_server_of_one_accepts_a_server_of_several_accepts(
    doors: Mapping[str, Any],
) -> None:
    engines = Engines(doors)
    for given, one in doors.items():
        for name in (given, *one.family.names, model_said(one), one.card.name):
            assert means(engines, name) is one, name
            assert means(Engines({given: one}), name) is one, name


@pytest.mark.parametrize("family", FAMILIES)
def test_released_names_in_any_place(family: str, qwen: Tokenizer) -> None:
    first = door("open_jev", qwen, name="house/first")
    for release in family_class(family).about.releases:
        one = door(family, qwen, name=release.name, aliases=(release.name.rpartition("/")[2],))
        engines = Engines({"first": first, "given": one})
        short = release.name.rpartition("/")[2]
        for name in (release.name, short, short.lower(), model_said(one)):
            assert means(engines, name) is one, name


def test_a_shared_name_is_the_first_engines_and_a_given_name_goes_before(
    doors: Mapping[str, Any], qwen: Tokenizer
) -> None:
    one, other = (door("decider", qwen, name=f"house/{name}") for name in ("one", "other"))
    assert means(Engines({"one": one, "two": other}), "decider") is one
    assert means(Engines({"one": one, "decider": other}), "decider") is other
    assert means(Engines({"one": one, "two": other}), "house/other") is other


def test_an_unknown_name_is_refused_with_all_known_names(doors: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        means(Engines(doors), "gpt")
    for given, one in doors.items():
        for name in (given, *one.family.names):
            assert name in caught.value.message
