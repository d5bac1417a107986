"""Decider: rows in token ids, few and many options, numbered arrays, rounded answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adjudge.errors import CheckpointError, InvalidRequest, UsageError
from adjudge.families import Compiled
from adjudge.families.decider import Decider
from adjudge.families.limits import check_tokens
from adjudge.tokenizer import Tokenizer
from adjudge.wire import ChoiceAnswer, NoulAnswer, ScoreAnswer, request_from
from tests.family_cards import answer, card_for


@pytest.fixture
def family(qwen: Tokenizer) -> Decider:
    return Decider(card_for("decider", qwen), qwen)


def compiled(family: Decider, *questions: Any, state: Any = "S") -> Compiled:
    named = {f"q{place}": question for place, question in enumerate(questions)}
    return family.compile(request_from({"state": state, "questions": named}, aliases=True))


def ids(tokenizer: Tokenizer, *texts: str) -> list[int]:
    return [token for row in tokenizer.encode_many(texts) for token in row.tolist()]


def rows(found: Compiled, tokenizer: Tokenizer) -> list[list[int]]:
    return [row.tolist() for row in tokenizer.encode_prompts(found.prompts)]


def test_few_options_are_one_text_after_the_context(family: Decider, qwen: Tokenizer) -> None:
    question = {
        "type": "choice",
        "instructions": {"é": 1},
        "criteria": {"a": None, "b": "bee", "c": "", "d": ["x", 1]},
    }
    found = compiled(family, question, state="the state ")
    assert rows(found, qwen) == [
        ids(
            qwen,
            "Context:\nthe state ",
            '\n\nQuestion: {"é": 1}\nOptions:\n(A) a\n(B) b: bee\n(C) c\n(D) d: ["x", 1]'
            "\nAnswer: (",
        )
    ]
    assert found.prompts[0].readout.label_ids == (32, 33, 34, 35)
    assert found.prompts[0].readout.rounded


def test_segments_are_the_contract_not_the_whole_text(family: Decider, qwen: Tokenizer) -> None:
    found = compiled(family, {"type": "noul", "instructions": "Ok?"}, state="a\n")
    text = "Context:\na\n\n\nQuestion: Ok?\nOptions:\n(A) no\n(B) yes\nAnswer: ("
    assert rows(found, qwen)[0] != ids(qwen, text)
    assert rows(found, qwen)[0] == ids(qwen, "Context:\na\n", text[len("Context:\na\n") :])


def test_ten_and_eleven_options(family: Decider, qwen: Tokenizer) -> None:
    ten = {f"o{i}": None for i in range(10)}
    lines = "".join(f"\n({letter}) o{i}" for i, letter in enumerate("ABCDEFGHIJ"))
    found = compiled(family, {"type": "choice", "instructions": "Q", "criteria": ten})
    assert rows(found, qwen) == [
        ids(qwen, "Context:\nS", f"\n\nQuestion: Q\nOptions:{lines}\nAnswer: (")
    ]
    eleven = {**ten, "o10": "desc"}
    found = compiled(family, {"type": "choice", "instructions": "Q", "criteria": eleven})
    expected = ids(qwen, "Context:\nS", "\n\nQuestion: Q\nOptions:")
    for place, option in enumerate([*ten, "o10: desc"]):
        expected += [*ids(qwen, "\n("), 32 + place, *ids(qwen, f") {option}")]
    assert rows(found, qwen) == [expected + ids(qwen, "\nAnswer: (")]
    assert found.prompts[0].readout.label_ids == tuple(range(32, 43))


def test_two_hundred_and_fifty_five_options(family: Decider, qwen: Tokenizer) -> None:
    options = {f"o{i}": None for i in range(256)}
    with pytest.raises(InvalidRequest, match="there are 256 options; this model takes 2 to 255"):
        compiled(family, {"type": "choice", "criteria": options})
    options.popitem()
    found = compiled(family, {"type": "choice", "instructions": "Q", "criteria": options})
    label_ids = found.prompts[0].readout.label_ids
    assert label_ids is not None and len(set(label_ids)) == 255
    assert (label_ids[0], label_ids[25], label_ids[26], label_ids[254]) == (32, 57, 5840, 78382)
    (row,) = rows(found, qwen)
    last = [*ids(qwen, "\n("), 78382, *ids(qwen, ") o254", "\nAnswer: (")]
    assert row[-len(last) :] == last
    with pytest.raises(InvalidRequest, match="there is 1 option; this model takes 2 to 255"):
        compiled(family, {"type": "choice", "criteria": {"a": None}})


def test_nouls(family: Decider, qwen: Tokenizer) -> None:
    def piece(question: Any) -> list[int]:
        return rows(compiled(family, {"type": "noul", **question}), qwen)[0]

    def expected(asked: str, no: str, yes: str) -> list[int]:
        text = f"\n\nQuestion: {asked}\nOptions:\n(A) {no}\n(B) {yes}\nAnswer: ("
        return ids(qwen, "Context:\nS", text)

    assert piece({"instructions": "Ok?"}) == expected("Ok?", "no", "yes")
    sided = {"instructions": "Ok?", "criteria": {"true": "fine", "false": ""}}
    assert piece(sided) == expected("Ok?", "no", "yes: fine")
    for instructions in (None, ""):
        bare = {"instructions": instructions, "criteria": {"false": {"k": 1}}}
        asked = expected("Which answer fits the context?", 'no: {"k": 1}', "yes")
        assert piece(bare) == asked
    with pytest.raises(InvalidRequest, match=r"q0\.noul\.instructions: give instructions"):
        compiled(family, {"type": "noul", "instructions": "", "criteria": {"true": ""}})


def test_a_score_is_one_row_a_level_without_its_number(family: Decider, qwen: Tokenizer) -> None:
    levels = ["0: calm", " -1 :  odd", "2nd", {"k": "v"}, "3:4: x"]
    found = compiled(family, {"type": "score", "instructions": "How?", "criteria": levels})
    assert found.questions == {"q0": range(5)}
    assert rows(found, qwen) == [
        ids(
            qwen,
            "Context:\nS",
            f"\n\nQuestion: How?\nProposed answer: {level}\nDoes the proposed answer fit?\nOptions:"
            "\n(A) no\n(B) yes\nAnswer: (",
        )
        for level in ["calm", "odd", "2nd", '{"k": "v"}', "4: x"]
    ]


def test_long_arrays_are_numbered(family: Decider, qwen: Tokenizer) -> None:
    noul = {"type": "noul", "instructions": "Ok?"}
    state = {
        "short": [1] * 7,
        "long": [{"b": [None] * 8}, "é", 2.0, [3], None, {}, {"_index": 9}, 7],
    }
    inner = ", ".join(f'{{"_index": {i}, "value": null}}' for i in range(8))
    shown = (
        'Context:\n{"short": [1, 1, 1, 1, 1, 1, 1], "long": ['
        f'{{"_index": 0, "b": [{inner}]}}, {{"_index": 1, "value": "é"}}, '
        '{"_index": 2, "value": 2.0}, {"_index": 3, "value": [3]}, {"_index": 4, "value": null}, '
        '{"_index": 5}, {"_index": 9}, {"_index": 7, "value": 7}]}'
    )
    context, _ = compiled(family, noul, state=state).prompts[0].segments
    assert list(context) == ids(qwen, shown)
    context, _ = compiled(family, noul, state='["a", 1]').prompts[0].segments
    assert list(context) == ids(qwen, 'Context:\n["a", 1]')


def test_a_state_beyond_32768_tokens_is_cut_and_says_so(family: Decider, qwen: Tokenizer) -> None:
    noul = {"type": "noul", "instructions": "Ok?"}
    fits, over = "word" + " word" * 32_764, "word" + " word" * 32_770
    whole = compiled(family, noul, state=fits)
    assert len(whole.prompts[0].segments[0]) == 32_768
    assert "state_tokens_cut" not in answer(family, whole, [[0.0, 0.0]]).metadata
    cut = compiled(family, noul, state=over)
    assert cut.prompts[0].segments == whole.prompts[0].segments
    assert answer(family, cut, [[0.0, 0.0]]).metadata["state_tokens_cut"] == 6
    check_tokens(cut, [len(row) for row in rows(cut, qwen)], family.limits)


def test_limits_of_rows_and_tokens(family: Decider) -> None:
    ten = {"type": "score", "instructions": "Q", "criteria": [f"l{i}" for i in range(10)]}
    with pytest.raises(UsageError, match="1030 prompts; the limit is 1024"):
        compiled(family, *[ten] * 103)
    found = compiled(family, *[ten] * 102)
    assert len(found.prompts) == 1020
    with pytest.raises(UsageError, match="36865 tokens; the limit is 36864"):
        check_tokens(found, [36_865, *[1] * 1019], family.limits)
    narrow = replace(family.limits, max_prompt_tokens=16_384)
    with pytest.raises(UsageError, match=r"is 16384\. .* or load .* --max-batch-tokens 36864$"):
        check_tokens(found, [20_000, *[1] * 1019], narrow, wider_pass_tokens=36_864)
    with pytest.raises(UsageError, match=r"instructions or the option$"):
        check_tokens(found, [36_865, *[1] * 1019], narrow, wider_pass_tokens=36_864)
    with pytest.raises(UsageError, match="1048577 prompt tokens; the limit is 1048576"):
        check_tokens(found, [1557, *[1028] * 1018, 516], family.limits)


def test_usage_counts_the_common_prefix_once(family: Decider, qwen: Tokenizer) -> None:
    one = {"type": "noul", "instructions": "Is it so?"}
    two = {"type": "noul", "instructions": "Is it not?"}
    single = compiled(family, one)
    assert answer(family, single, [[0.0, 0.0]]).usage.input_tokens == len(rows(single, qwen)[0])
    pair = compiled(family, one, two)
    left, right = rows(pair, qwen)
    shared = next(i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    usage = answer(family, pair, [[0.0, 0.0]] * 2).usage
    assert usage.input_tokens == len(left) + len(right) - shared
    same = compiled(family, one, one)
    assert answer(family, same, [[0.0, 0.0]] * 2).usage.input_tokens == len(left)


def test_choice_answer(family: Decider) -> None:
    found = compiled(family, {"type": "choice", "criteria": {"x": None, "y": "d", "z": None}})
    response = answer(family, found, [[0.5, 2.25, -1.0]])
    weights = [math.exp(v / 1.164) for v in (0.5, 2.25, -1.0)]
    p = [w / sum(weights) for w in weights]
    entropy = -sum(x * math.log(x) for x in p)
    assert response.answers["q0"] == ChoiceAnswer(
        choice="y",
        probabilities={"x": round(p[0], 4), "y": round(p[1], 4), "z": round(p[2], 4)},
        confidence=round((3 * p[1] - 1) / 2, 4),
        extra={"x_p_max": round(p[1], 4), "x_certainty": round(1 - entropy / math.log(3), 4)},
    )
    assert response.model == "house/decider-Model"
    assert response.metadata["temperature_by_type"] == {
        "choice": 1.164, "noul": 1.624, "score": 1.124,
    }  # fmt: skip


def test_noul_answer(family: Decider) -> None:
    found = compiled(family, {"type": "bool", "question": "Ok?"})
    got = answer(family, found, [[-1.0, 1.5]]).answers["q0"]
    assert got == NoulAnswer(noul=round(1 / (1 + math.exp(-2.5 / 1.624)), 4))


def test_score_answer(family: Decider) -> None:
    found = compiled(family, {"type": "score", "criteria": ["low", "1: mid", ["hi"]]})
    logits = [[1.0, -1.0], [0.0, 2.0], [0.25, 0.5]]
    fits = [1 / (1 + math.exp(-(yes - no) / 1.124)) for no, yes in logits]
    p = [fit / sum(fits) for fit in fits]
    spread = p[0] + p[2]
    assert answer(family, found, logits).answers["q0"] == ScoreAnswer(
        score=round(p[1] + 2 * p[2], 2),
        legend={"0": "low", "1": "1: mid", "2": ["hi"]},
        probabilities={str(i): round(x, 4) for i, x in enumerate(p)},
        confidence=round(1 - spread / (2 / 3), 4),
        extra={
            "x_level_fit": {str(i): round(fit, 4) for i, fit in enumerate(fits)},
            "x_fit_mass": round(sum(fits), 4),
        },
    )


def test_no_level_fits_at_all(family: Decider) -> None:
    found = compiled(family, {"type": "score", "criteria": ["low", "high"]})
    got = answer(family, found, [[1e30, 0.0], [1e30, 0.0]]).answers["q0"]
    assert isinstance(got, ScoreAnswer)
    assert (got.score, got.confidence, got.probabilities) == (0.0, 0.0, {"0": 0.0, "1": 0.0})


def test_label_mass_of_a_score_is_the_least_of_its_rows(family: Decider) -> None:
    question = {"type": "score", "criteria": ["low", "high"]}
    found = family.compile(
        request_from({"state": "S", "questions": {"q": question}, "x_diagnostics": True})
    )
    total = float(np.log(np.float32(4.0)))
    got = answer(family, found, [[0.0, 0.0, total], [0.0, 0.0, 2 * total]]).answers["q"]
    assert got.extra["x_label_mass"] == pytest.approx(2 / 16, abs=1e-6)


def test_calibration_is_checked(family: Decider, qwen: Tokenizer) -> None:
    broken = {"temperature_by_type": {"choice": 1.0, "noul": 0.0, "score": 1.0}}
    with pytest.raises(CheckpointError, match=r"temperature_by_type\.noul: temperature is 0\.0"):
        Decider(replace(family.card, calibration=broken), qwen)
