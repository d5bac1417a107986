"""Requests in, answers and errors out: the shapes of the HTTP contract."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from adjudge.errors import (
    AuthenticationError,
    BodyTooLarge,
    Detail,
    InternalError,
    InvalidRequest,
    Overloaded,
    RateLimited,
    Unavailable,
    UsageError,
)
from adjudge.wire import (
    Choice,
    ChoiceAnswer,
    Noul,
    NoulAnswer,
    NoulCriteria,
    Request,
    Response,
    Score,
    ScoreAnswer,
    Usage,
    encode_response,
    error_body,
    json_schemas,
    parse_request,
    request_from,
    response_to,
)

NOUL = {"type": "noul", "instructions": "Ok?"}


def parse(body: Any, **options: Any) -> Request:
    """Through both doors, which must agree."""
    request = parse_request(json.dumps(body).encode(), **options)
    assert request_from(body, **options) == request
    return request


def faults(body: Any, **options: Any) -> list[tuple[tuple[str | int, ...], str]]:
    """(loc, type) of everything wrong, from both doors."""
    with pytest.raises(InvalidRequest) as of_bytes:
        parse_request(json.dumps(body).encode(), **options)
    with pytest.raises(InvalidRequest) as of_dict:
        request_from(body, **options)
    assert of_bytes.value.details == of_dict.value.details
    return [(detail.loc, detail.type) for detail in of_bytes.value.details]


def ask(question: Any, **options: Any) -> Any:
    return parse({"state": "S", "questions": {"q": question}}, **options).questions["q"]


def fault(question: Any, **options: Any) -> tuple[tuple[str | int, ...], str]:
    (found,) = faults({"state": "S", "questions": {"q": question}}, **options)
    assert found[0][:3] == ("body", "questions", "q")
    return found[0][3:], found[1]


def test_a_full_request_keeps_order_and_ignores_what_it_does_not_know() -> None:
    request = parse(
        {
            "x_trace": [1],
            "state": {"b": 1, "a": [None, True, 1.5]},
            "model": "jev-latest",
            "questions": {
                "z": {"type": "noul", "criteria": {"false": "", "maybe": 1}, "weight": 3},
                "a 🙂": {"type": "choice", "criteria": {"y": None, "x": ["d"]}, "instructions": {}},
                "m": {"type": "score", "criteria": ["low", {"k": 1}], "instructions": None},
            },
            "assets": {"img": {"type": "image", "part": "asset-0"}},
            "x_diagnostics": True,
            "cache_salt": "tenant 7",
            "seed": 7,
        }
    )
    assert list(request.questions) == ["z", "a 🙂", "m"]
    assert request.questions == {
        "z": Noul(criteria=NoulCriteria(false="")),
        "a 🙂": Choice(criteria={"y": None, "x": ["d"]}, instructions={}),
        "m": Score(criteria=["low", {"k": 1}]),
    }
    choice = request.questions["a 🙂"]
    assert isinstance(choice, Choice) and list(choice.criteria) == ["y", "x"]
    assert request.state == {"b": 1, "a": [None, True, 1.5]}
    assert (request.model, request.diagnostics) == ("jev-latest", True)
    assert request.cache_salt == "tenant 7"
    assert request.assets is not None and request.assets["img"].part == "asset-0"


@pytest.mark.parametrize("state", ["", "text", {}, {"a": 1}, [], ["a"]])
def test_states(state: Any) -> None:
    assert parse({"state": state, "questions": {"q": NOUL}}).state == state


@pytest.mark.parametrize(
    "body, expected",
    [
        ({"questions": {"q": NOUL}}, [(("body", "state"), "missing")]),
        ({"state": None, "questions": {"q": NOUL}}, [(("body", "state"), "state_type")]),
        ({"state": 7, "questions": {"q": NOUL}}, [(("body", "state"), "state_type")]),
        ({"state": "S"}, [(("body", "questions"), "missing")]),
        ({"state": "S", "questions": None}, [(("body", "questions"), "object_type")]),
        ({"state": "S", "questions": [NOUL]}, [(("body", "questions"), "object_type")]),
        ({"state": "S", "questions": {}}, [(("body", "questions"), "too_short")]),
        (
            {"state": "S", "questions": {"": NOUL}},
            [(("body", "questions", ""), "string_too_short")],
        ),
        (
            {"state": "S", "questions": {"q": NOUL}, "model": 3, "x_diagnostics": 1},
            [(("body", "model"), "string_type"), (("body", "x_diagnostics"), "bool_type")],
        ),
        (
            {"state": "S", "questions": {"q": NOUL}, "cache_salt": 1},
            [(("body", "cache_salt"), "string_type")],
        ),
        (
            {"state": "S", "questions": {"q": NOUL}, "cache_salt": ""},
            [(("body", "cache_salt"), "string_too_short")],
        ),
        (
            {"state": "S", "questions": {"q": NOUL}, "cache_salt": "x" * 257},
            [(("body", "cache_salt"), "string_too_long")],
        ),
        (
            {"state": "S", "questions": {"q": NOUL}, "assets": {}},
            [(("body", "assets"), "too_short")],
        ),
        (
            {"state": "S", "questions": {"q": NOUL}, "assets": {"i": {"type": "image"}, "j": 1}},
            [(("body", "assets", "i"), "missing"), (("body", "assets", "j"), "object_type")],
        ),
        (
            {"state": "S", "questions": {"q": NOUL}, "assets": {"i": {"type": "pdf", "part": 1}}},
            [
                (("body", "assets", "i", "part"), "string_type"),
                (("body", "assets", "i", "type"), "literal_error"),
            ],
        ),
        ({}, [(("body", "state"), "missing"), (("body", "questions"), "missing")]),
    ],
)
def test_wrong_envelopes(body: Any, expected: Any) -> None:
    assert faults(body) == expected


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"3"])
def test_a_body_is_an_object(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="must be an object"):
        parse_request(body)


@pytest.mark.parametrize(
    "question, place, kind",
    [
        (None, (), "object_type"),
        ("noul", (), "object_type"),
        ({"instructions": "Ok?"}, (), "union_tag_not_found"),
        ({"type": "boolean", "instructions": "Ok?"}, (), "union_tag_invalid"),
        ({"type": "bool", "instructions": "Ok?"}, (), "union_tag_invalid"),
        ({"type": ["noul"]}, (), "union_tag_invalid"),
        ({"type": "box", "instructions": "the dog"}, (), "box_type"),
        ({"type": "noul"}, ("noul", "instructions"), "missing"),
        ({"type": "noul", "criteria": {}}, ("noul", "instructions"), "missing"),
        ({"type": "noul", "criteria": {"true": None}}, ("noul", "instructions"), "missing"),
        ({"type": "noul", "instructions": 1}, ("noul", "instructions"), "text_type"),
        ({**NOUL, "criteria": ["y", "n"]}, ("noul", "criteria"), "object_type"),
        ({**NOUL, "criteria": {"true": 1}}, ("noul", "criteria", "true"), "text_type"),
        ({"type": "choice"}, ("choice", "criteria"), "missing"),
        ({"type": "choice", "criteria": {}}, ("choice", "criteria"), "too_short"),
        ({"type": "choice", "criteria": None}, ("choice", "criteria"), "object_type"),
        ({"type": "choice", "criteria": ["a", "b"]}, ("choice", "criteria"), "object_type"),
        ({"type": "choice", "criteria": {"a": 1}}, ("choice", "criteria"), "text_type"),
        ({"type": "choice", "criteria": {"a": False}}, ("choice", "criteria"), "text_type"),
        ({"type": "score"}, ("score", "criteria"), "missing"),
        ({"type": "score", "criteria": []}, ("score", "criteria"), "too_short"),
        ({"type": "score", "criteria": {"0": "low"}}, ("score", "criteria"), "list_type"),
        ({"type": "score", "criteria": ["low", None]}, ("score", "criteria", 1), "text_type"),
        ({"type": "score", "criteria": [3]}, ("score", "criteria", 0), "text_type"),
    ],
)
def test_wrong_questions(question: Any, place: tuple[str | int, ...], kind: str) -> None:
    assert fault(question) == (place, kind)


def test_noul_forms() -> None:
    assert ask(NOUL) == Noul(instructions="Ok?")
    assert ask({**NOUL, "criteria": None}) == Noul(instructions="Ok?")
    assert ask({"type": "noul", "criteria": {"true": {"k": 1}, "false": None}}) == Noul(
        criteria=NoulCriteria(true={"k": 1})
    )
    assert ask({"type": "noul", "instructions": ""}) == Noul(instructions="")


def test_every_fault_is_reported_and_a_flood_is_counted() -> None:
    questions = {f"q{i}": {"type": "noul"} for i in range(100)}
    found = faults({"questions": questions})
    assert len(found) == 65
    assert found[0] == (("body", "state"), "missing")
    assert found[1] == (("body", "questions", "q0", "noul", "instructions"), "missing")
    with pytest.raises(InvalidRequest, match="37 more fields are wrong; the first 64"):
        parse_request(json.dumps({"questions": questions}).encode())


def test_messages_hold_no_request_text() -> None:
    secret = "hunter2"
    body = {
        "state": 3,
        "model": [secret],
        "questions": {
            "a": {"type": secret},
            "b": {"type": "choice", "criteria": {secret: 5}},
            "c": {"type": "score", "criteria": {secret: secret}},
            "d": {"type": "noul", "criteria": [secret]},
        },
    }
    with pytest.raises(InvalidRequest) as caught:
        parse_request(json.dumps(body).encode())
    assert len(caught.value.details) == 6
    assert secret not in json.dumps(error_body(caught.value))


def test_aliases_only_where_a_family_takes_them() -> None:
    aliased = {"type": "choice", "question": "Which?", "options": ["b", "a"]}
    choice = ask(aliased, aliases=True)
    assert choice == Choice(instructions="Which?", criteria={"b": None, "a": None})
    assert list(choice.criteria) == ["b", "a"]
    assert ask({"type": "bool", "question": "Ok?"}, aliases=True) == Noul(instructions="Ok?")
    official = {**aliased, "instructions": "Official?", "criteria": {"c": None}}
    assert (
        ask(official, aliases=True)
        == ask(official)
        == Choice(instructions="Official?", criteria={"c": None})
    )
    assert fault("noul", aliases=True) == ((), "object_type")
    assert fault(aliased) == (("choice", "criteria"), "missing")


@pytest.mark.parametrize("field", ["options", "criteria"])
@pytest.mark.parametrize(
    "options, place, message",
    [
        ([], (), "there are 0 options; give at least 1"),
        (["a", "b", "a"], (2,), "is the same text as option 1 of 3; send it once"),
        (["a", 1], (1,), "must be a string, the name of an option, not a number"),
        ([["a"]], (0,), "must be a string, the name of an option, not an array"),
    ],
)
def test_what_is_wrong_with_a_list_of_options_is_said_of_its_entry(
    field: str, options: list[Any], place: tuple[int, ...], message: str
) -> None:
    """Where lists are taken; elsewhere an array is no object."""
    question = {"type": "choice", field: options}
    with pytest.raises(InvalidRequest) as caught:
        ask(question, aliases=True)
    (detail,) = caught.value.details
    assert detail.loc == ("body", "questions", "q", "choice", "criteria", *place)
    assert detail.msg == message
    if field == "criteria":
        assert fault(question) == (("choice", "criteria"), "object_type")


class Unsayable:
    pass


@pytest.mark.parametrize(
    "state, message",
    [
        ({"a": float("nan")}, "finite"),
        ([float("-inf")], "finite"),
        ([10**4300], "4300 characters"),
        ([-(10**4299)], "4300 characters"),
        ({1: "a"}, "keys must be strings, not int"),
        ({"\ud800": 1}, "surrogate"),
        ("\udc00", "surrogate"),
        ({"a": {1, 2}}, "no set"),
        (Unsayable(), "no Unsayable"),
        (b"bytes", "no bytes"),
    ],
)
def test_python_values_that_are_no_json(state: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        request_from({"state": state, "questions": {"q": NOUL}})
    assert caught.value.details[0].loc[:2] == ("body", "state")


def test_python_values_that_are() -> None:
    state: dict[str, Any] = {"t": (1, 2), "m": MappingProxyType({"k": None}), "n": -(10**4299) + 1}
    request = request_from(MappingProxyType({"state": state, "questions": {"q": NOUL}}))
    assert request.state == {"t": [1, 2], "m": {"k": None}, "n": 1 - 10**4299}
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidRequest, match="more than 127 levels"):
        request_from({"state": cycle, "questions": {"q": NOUL}})


def test_nesting_is_counted_alike_through_both_doors() -> None:
    deepest = json.loads("[" * 126 + "]" * 126)
    parse({"state": deepest, "questions": {"q": NOUL}})
    assert faults_of_nesting([deepest])


def faults_of_nesting(state: Any) -> bool:
    body = {"state": state, "questions": {"q": NOUL}}
    for door in (lambda: parse_request(json.dumps(body).encode()), lambda: request_from(body)):
        with pytest.raises(InvalidRequest) as caught:
            door()
        assert caught.value.details[0].type == "json_nesting"
    return True


RESPONSE = Response(
    model="m",
    answers={
        "z": NoulAnswer(noul=0.1, extra={"x_label_mass": 0.5}),
        "a": ChoiceAnswer(choice="y", probabilities={"y": 0.75, "x": 0.25}, confidence=0.5),
        "s": ScoreAnswer(
            score=1.0, legend={"0": "low", "1": {"k": 1}}, probabilities={"0": 0.0, "1": 1.0},
            confidence=1.0,
        ),
    },
    usage=Usage(input_tokens=12),
    metadata={"method": "m"},
)  # fmt: skip


def test_response() -> None:
    body = encode_response(RESPONSE)
    assert json.loads(body) == response_to(RESPONSE)
    assert body == (
        b'{"model":"m","answers":{"z":{"type":"noul","noul":0.1,"x_label_mass":0.5},'
        b'"a":{"type":"choice","choice":"y","probabilities":{"y":0.75,"x":0.25},"confidence":0.5},'
        b'"s":{"type":"score","score":1.0,"legend":{"0":"low","1":{"k":1}},'
        b'"probabilities":{"0":0.0,"1":1.0},"confidence":1.0}},'
        b'"usage":{"input_tokens":12,"output_tokens":0},"x_metadata":{"method":"m"}}'
    )
    assert list(response_to(RESPONSE, metadata_key="metadata"))[-1] == "metadata"
    bare = msgspec.structs.replace(RESPONSE, metadata={})
    assert list(response_to(bare)) == ["model", "answers", "usage"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_answer_leaves_with_a_number_that_is_not_finite(number: float) -> None:
    for answer in (
        NoulAnswer(noul=number),
        ChoiceAnswer(choice="a", probabilities={"a": number}, confidence=1.0),
        ScoreAnswer(score=number, legend={}, probabilities={}, confidence=0.0),
        NoulAnswer(noul=0.5, extra={"x_label_mass": number}),
    ):
        with pytest.raises(InternalError, match="not finite"):
            encode_response(msgspec.structs.replace(RESPONSE, answers={"q": answer}))


def test_error_bodies() -> None:
    wrong = InvalidRequest(
        Detail(loc=("body", "questions", "q", "score", "criteria", 1), msg="m", type="text_type"),
        Detail(loc=("body", "state"), msg="n", type="missing", input=0),
    )
    assert error_body(wrong) == (
        422,
        {
            "detail": [
                {
                    "loc": ["body", "questions", "q", "score", "criteria", 1],
                    "msg": "m",
                    "type": "text_type",
                },
                {"loc": ["body", "state"], "msg": "n", "type": "missing", "input": 0},
            ]
        },
        {},
    )
    assert error_body(UsageError("why")) == (
        400,
        {"detail": {"error_type": "api_usage_error", "message": "why"}},
        {},
    )
    assert error_body(BodyTooLarge("big"))[:2] == (
        413,
        {"detail": {"error_type": "api_usage_error", "message": "big"}},
    )
    status, body, headers = error_body(AuthenticationError("key"))
    assert (status, body["detail"]["error_type"]) == (401, "authentication_error")
    assert headers == {"www-authenticate": "Bearer"}
    assert error_body(AuthenticationError("key", status=403))[::2] == (403, {})
    assert error_body(Overloaded("full", retry_after_ms=1200))[::2] == (
        529,
        {"retry-after": "2", "retry-after-ms": "1200"},
    )
    assert error_body(RateLimited("full", retry_after_ms=-5))[2]["retry-after"] == "0"
    for internal in (InternalError("oh"), Unavailable("loading")):
        assert error_body(internal)[1]["detail"]["error_type"] == "internal_error"


def test_schemas_name_every_type_and_have_no_loose_ends() -> None:
    schemas = json_schemas()
    assert set(schemas) == {
        "Request", "Noul", "NoulCriteria", "Choice", "Score", "Asset",
        "Response", "NoulAnswer", "ChoiceAnswer", "ScoreAnswer", "Usage",
    }  # fmt: skip
    text = json.dumps(schemas)
    for reference in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in schemas
    assert schemas["Request"]["required"] == ["state", "questions"]
    assert set(schemas["ChoiceAnswer"]["properties"]) == {
        "type", "choice", "probabilities", "confidence",
    }  # fmt: skip
    assert "x_metadata" in schemas["Response"]["properties"]
