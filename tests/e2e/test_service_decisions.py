"""POST /v1/decisions: OpenAI's spelling of the same questions, mapped both ways."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service_rig import Rig, running

PREDICATE = {"type": "predicate", "instructions": "Is it wet?"}
CHOICE = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team?",
    "choices": [{"value": "billing", "description": "Payments"}, {"value": True}],
}
SCORE = {
    "type": "score",
    "name": "anger",
    "instructions": "How angry?",
    "levels": [{"label": "calm", "description": "Neutral"}, {"label": "angry"}],
}
SAME = {
    "state": "It rains.",
    "questions": {
        "0": {"type": "noul", "instructions": "Is it wet?"},
        "1": {
            "type": "choice",
            "instructions": "Which team?",
            "criteria": {"billing": "Payments", "true": None},
        },
        "2": {
            "type": "score",
            "instructions": "How angry?",
            "criteria": ["calm: Neutral", "angry"],
        },
    },
}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running() as one:
        yield one


def asked(**changes: Any) -> dict[str, Any]:
    questions = [PREDICATE, CHOICE, SCORE]
    return {"model": "jev-latest", "input": "It rains.", "questions": questions} | changes


def decide(rig: Rig, body: Any) -> Any:
    reply = rig.ask(body, path="/v1/decisions")
    return reply.json() if reply.status_code == 200 else (reply.status_code, reply.json())


def test_answers_are_those_of_the_same_systemone_request_in_question_order(rig: Rig) -> None:
    body = decide(rig, asked(safety_identifier="someone"))
    same = rig.ask(SAME).json()
    predicate, choice, score = body["answers"]
    assert predicate == {
        "type": "predicate",
        "name": None,
        "probability": same["answers"]["0"]["noul"],
    }
    billing, other = same["answers"]["1"]["probabilities"].values()
    assert choice == {
        "type": "choice",
        "name": "team",
        "choice": "billing" if billing >= other else True,
        "probabilities": [
            {"value": "billing", "probability": billing},
            {"value": True, "probability": other},
        ],
        "confidence": same["answers"]["1"]["confidence"],
    }
    calm, angry = same["answers"]["2"]["probabilities"].values()
    assert score == {
        "type": "score",
        "name": "anger",
        "score": same["answers"]["2"]["score"],
        "probabilities": [
            {"value": 0, "label": "calm", "probability": calm},
            {"value": 1, "label": "angry", "probability": angry},
        ],
        "confidence": same["answers"]["2"]["confidence"],
    }
    tokens = same["usage"]["input_tokens"]
    assert body["usage"]["input_tokens"] == body["usage"]["total_tokens"] == tokens
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    assert body["model"] == same["model"]


def state_of(rig: Rig, given: Any) -> str:
    """The state that the model read for this input."""
    decide(rig, asked(input=given, questions=[PREDICATE]))
    text = bytes(rig.engine.passes[-1][0].token_ids.astype("uint8")).decode()
    return text.partition("Context:\n")[2].partition("\n\nQuestion:")[0]


def test_input_items_become_an_array_of_their_texts_and_data(rig: Rig) -> None:
    assert state_of(rig, "plain") == "plain"
    text = {"type": "input_text", "text": "Hello"}
    json = {"type": "input_json", "data": {"a": 1}}
    said = {"type": "output_text", "text": "Hi"}
    items = [
        {"role": "user", "content": "Words"},
        {"role": "user", "content": [text]},
        {"role": "user", "content": [text, json]},
        {"role": "assistant", "content": [said, {"type": "refusal", "refusal": "No"}]},
        {"type": "function_call_output", "call_id": "1", "output": [text]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    ]
    assert state_of(rig, items) == (
        '[{"content": "Words", "role": "user"}, {"content": "Hello", "role": "user"}, '
        '{"content": ["Hello", {"a": 1}], "role": "user"}, '
        '{"content": ["Hi", "No"], "role": "assistant"}, '
        '{"call_id": "1", "output": "Hello", "type": "function_call_output"}, '
        '{"arguments": "{}", "call_id": "1", "name": "f", "type": "function_call"}]'
    )


def test_instructions_may_be_parts(rig: Rig) -> None:
    parts = [{"type": "input_text", "text": "Is it wet?"}]
    plain = decide(rig, asked(questions=[PREDICATE]))["answers"]
    assert decide(rig, asked(questions=[PREDICATE | {"instructions": parts}]))["answers"] == plain


@pytest.mark.parametrize(
    "change, loc",
    [
        ({"input": 5}, ["body", "input"]),
        ({"cache_salt": ""}, ["body", "cache_salt"]),
        ({"questions": []}, ["body", "questions"]),
        ({"questions": {}}, ["body", "questions"]),
        ({"questions": [PREDICATE, {"type": "box"}]}, ["body", "questions", 1]),
        ({"questions": [CHOICE, CHOICE]}, ["body", "questions", 1, "name"]),
        (
            {"questions": [CHOICE | {"choices": [{"value": "true"}, {"value": True}]}]},
            ["body", "questions", 0, "choices"],
        ),
        (
            {"questions": [CHOICE | {"choices": [{"value": 1}]}]},
            ["body", "questions", 0, "choices"],
        ),
        ({"questions": [CHOICE | {"choices": []}]}, ["body", "questions", 0, "choice", "choices"]),
        ({"questions": [SCORE | {"levels": []}]}, ["body", "questions", 0, "score", "levels"]),
        (
            {"questions": [SCORE | {"levels": [{"label": str(i)} for i in range(11)]}]},
            ["body", "questions", 0, "score", "levels"],
        ),
        (
            {
                "questions": [
                    PREDICATE | {"instructions": [{"type": "input_image", "image_url": ""}]}
                ]
            },
            ["body", "questions", 0, "instructions", 0],
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            ["body", "input", 0, "content", 0],
        ),
    ],
)
def test_what_is_wrong_is_named_in_this_routes_spelling(
    rig: Rig, change: dict[str, Any], loc: list[Any]
) -> None:
    status, body = decide(rig, asked(**change))
    assert status == 422
    found = body["detail"][0]["loc"]
    assert found[: len(loc)] == loc


WRONG_FORMS: list[Any] = [
    *([], None, "x", 3, {}, {"input": 3}),
    asked(questions=[7]),
    *(asked(questions=[one]) for one in ({}, {"type": "hidden"}, {"type": 5}, {"type": "noul"})),
    *(asked(questions=[PREDICATE | {"instructions": text}]) for text in (5, [{"type": "hidden"}])),
    *(asked(questions=[CHOICE | {"choices": [one]}]) for one in ({}, {"value": 1.5})),
    asked(model=4),
]


@pytest.mark.parametrize("value", WRONG_FORMS)
def test_a_wrong_form_is_told_in_our_words_and_without_the_requests(rig: Rig, value: Any) -> None:
    status, body = decide(rig, value)
    assert status == 422
    for detail in body["detail"]:
        assert re.search(r"must be|field required|is not known", detail["msg"])
        assert not re.search(r"Expected|`|\$|hidden", detail["msg"])


def test_an_unknown_model_is_400(rig: Rig) -> None:
    assert decide(rig, asked(model="gpt-6"))[0] == 400
