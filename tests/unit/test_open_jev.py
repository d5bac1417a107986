"""Open-Jev's prompts, byte by byte, and its answers, limits and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adjudge.errors import CheckpointError, ConfigError, InvalidRequest, UsageError
from adjudge.families import Limits, ModelCard
from adjudge.families.limits import check_tokens
from adjudge.families.open_jev import OpenJev
from adjudge.tokenizer import Tokenizer
from adjudge.wire import NoulAnswer, ScoreAnswer, request_from

CARD = ModelCard(
    name="ZefanCai/Open-Jev-9B",
    family="open_jev",
    base="Qwen/Qwen3.5-9B",
    base_revision="c202236",
    calibration={"temperature": 1.8969118766347646},
)
FAMILY = OpenJev(CARD)
JUDGE = "Is this proposed answer correct? Answer Yes or No."
ASK = "Is the answer to this question yes? Answer Yes or No."


def prompts_of(state: Any, question: dict[str, Any]) -> list[str]:
    """The user text of every prompt, without the chat turn around it."""
    compiled = FAMILY.compile(request_from({"state": state, "questions": {"q": question}}))
    texts = []
    for prompt in compiled.prompts:
        text = "".join(str(segment) for segment in prompt.segments)
        head, tail = (
            "<|im_start|>user\n",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        )
        assert text.startswith(head) and text.endswith(tail)
        texts.append(text[len(head) : -len(tail)])
    return texts


NOUL = {"type": "noul", "instructions": "Ok?"}
STRUCTURED = {"b": [1, None], "a": "é"}

# Three states, three instructions, four noul forms, four option forms, two level forms.
SHAPES: list[tuple[str, Any, dict[str, Any], list[str]]] = [
    ("state text", "S ", NOUL, [f"Context:\nS \n\nQuestion: Ok?\n{ASK}"]),
    (
        "state object",
        STRUCTURED,
        NOUL,
        [f'Context:\n{{"a": "é", "b": [1, null]}}\n\nQuestion: Ok?\n{ASK}'],
    ),
    ("state array", ["x", 1.0], NOUL, [f'Context:\n["x", 1.0]\n\nQuestion: Ok?\n{ASK}']),
    (
        "instructions absent",
        "S",
        {"type": "score", "criteria": ["low"]},
        [f"Context:\nS\n\nQuestion: \nProposed answer: low\n{JUDGE}"],
    ),
    (
        "instructions text",
        "S",
        {"type": "score", "instructions": "  How?\n", "criteria": ["low"]},
        [f"Context:\nS\n\nQuestion:   How?\n\nProposed answer: low\n{JUDGE}"],
    ),
    (
        "instructions structured",
        "S",
        {"type": "score", "instructions": STRUCTURED, "criteria": ["low"]},
        [f'Context:\nS\n\nQuestion: {{"a": "é", "b": [1, null]}}\nProposed answer: low\n{JUDGE}'],
    ),
    ("noul plain", "S", {**NOUL, "criteria": None}, [f"Context:\nS\n\nQuestion: Ok?\n{ASK}"]),
    (
        "noul yes side",
        "S",
        {**NOUL, "criteria": {"true": "fine", "false": None}},
        [f"Context:\nS\n\nQuestion: Ok?\nYes means: fine\n{ASK}"],
    ),
    (
        "noul no side",
        "S",
        {"type": "noul", "criteria": {"false": ["bad"]}},
        [f'Context:\nS\n\nQuestion: \nNo means: ["bad"]\n{ASK}'],
    ),
    (
        "noul both sides",
        "S",
        {**NOUL, "criteria": {"false": "", "true": {"k": 1}}},
        [f'Context:\nS\n\nQuestion: Ok?\nYes means: {{"k": 1}}\nNo means: \n{ASK}'],
    ),
    (
        "option bare",
        "S",
        {"type": "choice", "instructions": "Q", "criteria": {"z": None, "": None}},
        [
            f"Context:\nS\n\nQuestion: Q\nProposed answer: z\n{JUDGE}",
            f"Context:\nS\n\nQuestion: Q\nProposed answer: \n{JUDGE}",
        ],
    ),
    (
        "option with empty text",
        "S",
        {"type": "choice", "instructions": "Q", "criteria": {"z": ""}},
        [f"Context:\nS\n\nQuestion: Q\nProposed answer: z: \n{JUDGE}"],
    ),
    (
        "option with text",
        "S",
        {"type": "choice", "instructions": "Q", "criteria": {"z": "zed", "a": "ay"}},
        [
            f"Context:\nS\n\nQuestion: Q\nProposed answer: z: zed\n{JUDGE}",
            f"Context:\nS\n\nQuestion: Q\nProposed answer: a: ay\n{JUDGE}",
        ],
    ),
    (
        "option structured",
        "S",
        {"type": "choice", "instructions": "Q", "criteria": {"z": STRUCTURED}},
        [f'Context:\nS\n\nQuestion: Q\nProposed answer: z: {{"a": "é", "b": [1, null]}}\n{JUDGE}'],
    ),
    (
        "level text",
        "S",
        {"type": "score", "instructions": "Q", "criteria": ["low", "low"]},
        [f"Context:\nS\n\nQuestion: Q\nProposed answer: low\n{JUDGE}"] * 2,
    ),
    (
        "level structured",
        "S",
        {"type": "score", "instructions": "Q", "criteria": [["l", 0], {"n": 1}]},
        [
            f'Context:\nS\n\nQuestion: Q\nProposed answer: ["l", 0]\n{JUDGE}',
            f'Context:\nS\n\nQuestion: Q\nProposed answer: {{"n": 1}}\n{JUDGE}',
        ],
    ),
]


@pytest.mark.parametrize(
    "state, question, texts", [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES]
)
def test_prompt_shape(state: Any, question: dict[str, Any], texts: list[str]) -> None:
    assert prompts_of(state, question) == texts


def test_there_are_sixteen_shapes() -> None:
    assert len({name for name, *_ in SHAPES}) == 16


def test_suffix_ids(qwen: Tokenizer) -> None:
    compiled = FAMILY.compile(request_from({"state": "S", "questions": {"q": NOUL}}))
    (ids,) = qwen.encode_prompts(compiled.prompts)
    assert ids[-9:].tolist() == [248046, 198, 248045, 74455, 198, 248068, 271, 248069, 271]


def test_shared_text_is_one_segment_and_the_shared_prefix_ends_with_token_25(
    qwen: Tokenizer,
) -> None:
    question = {"type": "choice", "instructions": "Q", "criteria": {"a": None, "b": None}}
    compiled = FAMILY.compile(
        request_from({"state": "S", "questions": {"q": question, "r": question, "s": NOUL}})
    )
    assert len({segment for prompt in compiled.prompts for segment in prompt.segments}) == 9
    left, right, *_ = qwen.encode_prompts(compiled.prompts)
    (differs,) = np.nonzero(left != right)
    assert left[differs[0] - 1] == 25


def test_names_siblings_and_order_never_enter_a_prompt() -> None:
    choice = {"type": "choice", "criteria": {"a": None, "b": "x"}}
    alone = FAMILY.compile(request_from({"state": "S", "questions": {"one": choice}}))
    among = FAMILY.compile(
        request_from({"state": "S", "questions": {"n": NOUL, "two": choice, "m": NOUL}})
    )
    found = [among.prompts[i].segments for i in among.questions["two"]]
    assert found == [prompt.segments for prompt in alone.prompts]


@pytest.mark.parametrize(
    "name",
    [
        None,
        "open-jev",
        "jev-latest",
        "jev-preview",
        "Qwen/Qwen3.5-9B",
        "ZefanCai/Open-Jev-9B",
        "open-jev-9b",
        "house-name",
    ],
)
def test_accepted_model_names(name: str | None) -> None:
    family = OpenJev(replace(CARD, aliases=("house-name",)))
    request = request_from({"model": name, "state": "S", "questions": {"q": NOUL}})
    compiled = family.compile(request)
    response = family.answer(compiled, [np.float32([0.0])], [17], {})
    assert response.model == "ZefanCai/Open-Jev-9B"


@pytest.mark.parametrize("name", ["", "open-jev-2b", "OPEN-JEV", "gpt-jev"])
def test_unknown_model_is_refused_without_being_echoed(name: str) -> None:
    request = request_from({"model": name, "state": "S", "questions": {"q": NOUL}})
    with pytest.raises(UsageError, match="not loaded here") as caught:
        FAMILY.compile(request)
    assert caught.value.status == 400
    assert not name or name not in caught.value.message


def test_option_and_level_counts() -> None:
    def ask(question: dict[str, Any]) -> Any:
        return FAMILY.compile(request_from({"state": "S", "questions": {"q": question}}))

    options = {f"o{i}": None for i in range(256)}
    with pytest.raises(InvalidRequest, match=r"questions\.q\.choice\.criteria: there are 256"):
        ask({"type": "choice", "criteria": options})
    options.popitem()
    assert len(ask({"type": "choice", "criteria": options}).prompts) == 255
    with pytest.raises(InvalidRequest, match="there are 11 levels; this model takes 1 to 10"):
        ask({"type": "score", "criteria": ["x"] * 11})
    assert len(ask({"type": "score", "criteria": ["x"] * 10}).prompts) == 10


def test_request_wide_counts() -> None:
    family = OpenJev(CARD, Limits(max_questions=2, max_candidates=5))
    three = {"type": "score", "criteria": ["a", "b", "c"]}
    family.compile(request_from({"state": "S", "questions": {"q": three, "r": NOUL}}))
    with pytest.raises(UsageError, match="6 candidates; the limit is 5"):
        family.compile(request_from({"state": "S", "questions": {"q": three, "r": three}}))
    with pytest.raises(UsageError, match="asks 3 questions; the limit is 2"):
        family.compile(request_from({"state": "S", "questions": dict.fromkeys("abc", NOUL)}))


def test_assets_are_refused_by_name() -> None:
    request = request_from(
        {"state": "S", "questions": {"q": NOUL}, "assets": {"photo": {"part": "asset-0"}}}
    )
    with pytest.raises(InvalidRequest) as caught:
        FAMILY.compile(request)
    assert caught.value.details[0].loc == ("body", "assets", "photo")


def test_too_long_a_prompt_names_question_count_and_limit() -> None:
    questions = {"short": NOUL, "long one": NOUL}
    compiled = FAMILY.compile(request_from({"state": "S", "questions": questions}))
    check_tokens(compiled, [4096, 4096], FAMILY.limits)
    with pytest.raises(UsageError, match=r"'long one' .* 4097 tokens; the limit is 4096"):
        check_tokens(compiled, [10, 4097], FAMILY.limits)
    with pytest.raises(UsageError, match="20 prompt tokens; the limit is 19"):
        check_tokens(compiled, [10, 10], Limits(max_request_tokens=19))


@pytest.mark.parametrize(
    "temperature",
    [None, 0, -1.0, 1e-320, 1e-38, float("nan"), float("inf"), 10**400, "2", True],
)
def test_unusable_temperature(temperature: Any) -> None:
    with pytest.raises(CheckpointError, match="temperature"):
        OpenJev(replace(CARD, calibration={"temperature": temperature}))


def test_prompt_limit_of_the_family() -> None:
    OpenJev(CARD, Limits(max_prompt_tokens=16_384))
    with pytest.raises(ConfigError, match=r"16385.*1 to 16384"):
        OpenJev(CARD, Limits(max_prompt_tokens=16_385))


def test_answers_and_metadata() -> None:
    family = OpenJev(replace(CARD, calibration={"temperature": 2.5343690298472983}))
    questions = {
        "s": {"type": "score", "criteria": ["low", {"k": 1}, "high"]},
        "n": NOUL,
    }
    compiled = family.compile(request_from({"state": "S", "questions": questions}))
    logits = [np.float32([x]) for x in (-2, -1, 0, 1)]
    facts = {"inference_seconds": 0.25, "prefix_cache": {"enabled": True}}
    response = family.answer(compiled, logits, [5, 6, 7, 8], facts)
    assert response.answers == {
        "s": ScoreAnswer(
            score=1.2564470917325836,
            legend={"0": "low", "1": {"k": 1}, "2": "high"},
            probabilities={
                "0": 0.21343437444688138,
                "1": 0.3166841593736535,
                "2": 0.4698814661794651,
            },
            confidence=0.0,
        ),
        "n": NoulAnswer(noul=0.5973836777434065),
    }
    assert response.usage.input_tokens == 26
    assert response.metadata == {
        "method": "independent_candidate_lora_nll_brier",
        "temperature": 2.5343690298472983,
        "candidate_sequences": 4,
        "base_revision": "c202236",
        "max_length": 4096,
        **facts,
    }
    json.dumps(response.metadata)
