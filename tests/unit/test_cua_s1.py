"""Cua-S1: the chat turn byte by byte, the 218-token fixture's structure, letters, confidence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from adjudge.errors import InvalidRequest, UsageError
from adjudge.families import Compiled
from adjudge.families.cua_s1 import SYSTEM, CuaS1
from adjudge.tokenizer import Tokenizer
from adjudge.wire import ChoiceAnswer, request_from
from tests.family_cards import answer, card_for


@pytest.fixture
def family(qwen: Tokenizer) -> CuaS1:
    return CuaS1(card_for("cua_s1", qwen), qwen)


def compiled(family: CuaS1, state: Any, criteria: Any, instructions: Any = None) -> Compiled:
    question = {"type": "choice", "instructions": instructions, "criteria": criteria}
    return family.compile(request_from({"state": state, "questions": {"q": question}}))


def text(found: Compiled) -> str:
    (prompt,) = found.prompts
    return "".join(map(str, prompt.segments))


def user(found: Compiled) -> str:
    head = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
    tail = "<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert text(found).startswith(head) and text(found).endswith(tail)
    return text(found)[len(head) : -len(tail)]


def test_prompt(family: CuaS1) -> None:
    criteria = {"save": 'Click "Save"\n(keeps C:\\tmp)', "quit": None, "z": {"é": 1}, "w": ""}
    assert user(compiled(family, "button 'Save'\n", criteria, "Save it")) == (
        "Goal: Save it\n\n"
        "App: Cua Driver\nTask family: closed-candidate decision\n\n"
        "Accessibility tree:\nbutton 'Save'\n\n\n"
        "Options:\n"
        'A. Decision "Click \\"Save\\"\\n(keeps C:\\\\tmp)" -> select\n'
        'B. Decision "quit" -> select\n'
        'C. Decision "{\\"é\\": 1}" -> select\n'
        'D. Decision "" -> select\n\n'
        "Answer with a single letter."
    )


@pytest.mark.parametrize("goal", [None, "", {}, []])
def test_no_goal_no_line(family: CuaS1, goal: Any) -> None:
    assert user(compiled(family, "S", {"a": None}, goal)).startswith("App: Cua Driver\n")


@pytest.mark.parametrize(
    "state, shown",
    [("", '""'), ({}, "{}"), ([], "[]"), ({"b": 1, "a": "é"}, '{"b": 1, "a": "é"}'), (" ", " ")],
)
def test_states(family: CuaS1, state: Any, shown: str) -> None:
    asked = user(compiled(family, state, {"a": None}, {"k": 1}))
    assert asked.startswith('Goal: {"k": 1}\n\nApp')
    assert f"\nAccessibility tree:\n{shown}\n\nOptions:\n" in asked


def test_tokens_of_a_three_option_screen(family: CuaS1, qwen: Tokenizer) -> None:
    """The public fixture has 218 tokens; this screen of the same form says what they are of."""
    criteria = {"go": "Submit the form now.", "no": "Discard it.", "stop": "Stop safely."}
    found = compiled(family, "\"ok\": text 'Submit' at (300,240,100,40)", criteria, "Submit it.")
    (ids,) = qwen.encode_prompts(found.prompts)
    row = ids.tolist()
    assert row[0] == 248045 and row[-6:] == [198, 248045, 74455, 198, 248068, 198]
    assert [row.count(special) for special in (248045, 248046, 248068, 248069)] == [3, 2, 1, 0]
    head = len(qwen.encode_many([f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"])[0])
    assert (head, len(row)) == (78, 176)
    assert found.prompts[0].readout.label_ids == (32, 33, 34)
    assert found.prompts[0].readout.rounded and not found.prompts[0].readout.mass


def test_twenty_six_options_and_no_more(family: CuaS1) -> None:
    options = {f"o{i}": None for i in range(27)}
    with pytest.raises(InvalidRequest, match="there are 27 options; this model takes 1 to 26"):
        compiled(family, "S", options)
    options.popitem()
    found = compiled(family, "S", options)
    assert found.prompts[0].readout.label_ids == tuple(range(32, 58))
    assert '\nZ. Decision "o25" -> select\n' in text(found)


@pytest.mark.parametrize(
    "question", [{"type": "noul", "instructions": "Ok?"}, {"type": "score", "criteria": ["a", "b"]}]
)
def test_only_choices(family: CuaS1, question: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"does not answer .* it answers choice"):
        family.compile(request_from({"state": "S", "questions": {"q": question}}))


def test_sixty_four_questions(family: CuaS1) -> None:
    question = {"type": "choice", "criteria": {"a": None}}
    with pytest.raises(UsageError, match="asks 65 questions; the limit is 64"):
        family.compile(
            request_from({"state": "S", "questions": {str(i): question for i in range(65)}})
        )


def test_answer(family: CuaS1) -> None:
    found = compiled(family, "S", {"x": None, "y": None, "z": None})
    logits = np.log(np.float64([0.12, 0.76, 0.12])).astype(np.float32)
    response = answer(family, found, [logits])
    assert response.model == "house/cua_s1-Model@abc:text"
    got = response.answers["q"]
    assert isinstance(got, ChoiceAnswer)
    p = [0.12, 0.76, 0.12]
    assert got.choice == "y"
    assert list(got.probabilities.values()) == pytest.approx(p, abs=1e-7)
    entropy = -sum(x * math.log(x) for x in p)
    assert got.confidence == pytest.approx(1 - entropy / math.log(3), abs=1e-6)


def test_ties_and_a_single_option(family: CuaS1) -> None:
    tie = answer(family, compiled(family, "S", {"x": None, "y": None}), [[3.0, 3.0]]).answers["q"]
    assert isinstance(tie, ChoiceAnswer)
    assert (tie.choice, tie.confidence) == ("x", pytest.approx(0.0, abs=1e-12))
    one = answer(family, compiled(family, "S", {"only": None}), [[-7.0]]).answers["q"]
    assert one == ChoiceAnswer(choice="only", probabilities={"only": 1.0}, confidence=1.0)


@pytest.mark.parametrize("model", [None, "cua-s1-4b-0.2", "house/cua_s1-Model@abc:text"])
def test_names(family: CuaS1, model: str | None) -> None:
    question = {"type": "choice", "criteria": {"a": None}}
    family.compile(request_from({"model": model, "state": "S", "questions": {"q": question}}))
