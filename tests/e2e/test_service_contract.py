"""The wire's first contract: routes, answers, headers, errors, names, limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_engine import FakeEngine
from tests.service_rig import CHOICE, NOUL, SCORE, Rig, running

ALL = {"n": NOUL, "c": CHOICE, "s": SCORE}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running() as one:
        yield one


def asked(**changes: Any) -> dict[str, Any]:
    return {"state": "It rains.", "questions": {"q": NOUL}} | changes


def test_answers_come_in_request_order_with_exactly_the_asked_names(rig: Rig) -> None:
    questions = {"z": SCORE, "a": NOUL, "질문 🎯": CHOICE}
    reply = rig.ask(asked(questions=questions))
    assert reply.status_code == 200
    body = reply.json()
    assert list(body["answers"]) == list(questions)
    assert [answer["type"] for answer in body["answers"].values()] == ["score", "noul", "choice"]
    assert body["usage"]["input_tokens"] > 0
    assert body["usage"]["output_tokens"] == 0
    assert body["model"] == rig.engine.card.name
    saved = body["x_metadata"]["prefix_cache"]["saved_tokens"]
    assert 0 < saved < body["usage"]["input_tokens"]
    assert all(key in ("model", "answers", "usage") or key.startswith("x_") for key in body)


def test_the_metadata_key_can_be_the_references() -> None:
    with running(metadata_key="metadata") as rig:
        assert "method" in rig.ask(asked()).json()["metadata"]


def test_an_answer_depends_on_nothing_but_state_and_question(rig: Rig) -> None:
    alone = rig.ask(asked(questions={"x": CHOICE})).json()["answers"]["x"]
    many = {f"q{i}": NOUL | {"instructions": str(i)} for i in range(20)} | {"other": CHOICE}
    assert rig.ask(asked(questions=many)).json()["answers"]["other"] == alone
    turned = dict(reversed(many.items()))
    assert rig.ask(asked(questions=turned)).json()["answers"]["other"] == alone


def test_every_reply_names_the_request_and_its_timings(rig: Rig) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    reply = rig.ask(asked(), headers={"x-request-id": "mine-1", "traceparent": trace})
    assert reply.headers["x-request-id"] == "mine-1"
    assert reply.headers["x-typesafe-request-id"] == "mine-1"
    assert reply.headers["traceparent"] == trace
    names = [part.split(";dur=")[0].strip() for part in reply.headers["server-timing"].split(",")]
    assert names == ["tokenise", "queue", "run"]
    for path, method in (("/nope", "GET"), ("/v1/systemone", "GET"), ("/health", "GET")):
        made = rig.client.request(method, path).headers
        assert made["x-request-id"] == made["x-typesafe-request-id"] != "mine-1"


def test_a_request_id_that_is_not_well_formed_is_not_repeated(rig: Rig) -> None:
    for bad in ("a" * 129, "two words", "<script>"):
        made = rig.ask(asked(), headers={"x-request-id": bad, "traceparent": bad}).headers
        assert made["x-request-id"] != bad
        assert "traceparent" not in made


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("GET", "/nope", 404),
        ("POST", "/v1/systemone/", 404),
        ("GET", "/v1/systemone", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
def test_wrong_paths_and_methods(rig: Rig, method: str, path: str, status: int) -> None:
    reply = rig.client.request(method, path)
    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["detail"]["error_type"] == "api_usage_error"
    assert ("allow" in reply.headers) == (status == 405)


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "", "application/json5", "x"]
)
def test_other_media_are_refused(rig: Rig, media: str) -> None:
    reply = rig.ask(asked(), headers={"content-type": media})
    assert reply.status_code == 415


def test_json_may_name_its_charset_if_it_is_utf8(rig: Rig) -> None:
    good = {"content-type": "application/json; charset=UTF-8"}
    assert rig.ask(asked(), headers=good).status_code == 200
    bad = {"content-type": "application/json; charset=utf-16"}
    assert rig.ask(asked(), headers=bad).status_code == 415


WIDE = dict.fromkeys(map(str, range(256)))
DEEP = b'{"state": ' + b"[" * 10_000 + b"]" * 10_000 + b', "questions": {}}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"state": "\\ud800", "questions": {"q": {"type": "noul", "instructions": "i"}}}',
        b'{"state": "s", "state": "s", "questions": {"q": {"type": "noul", "instructions": ""}}}',
        b'{"state": [NaN], "questions": {"q": {"type": "noul", "instructions": "i"}}}',
        b'{"state": [1' + b"0" * 4300 + b'], "questions": {}}',
        DEEP,
        json.dumps(asked(state=None)).encode(),
        json.dumps(asked(questions={})).encode(),
        json.dumps(asked(questions=[])).encode(),
        json.dumps(asked(questions={"": NOUL})).encode(),
        json.dumps(asked(questions={"q": {"type": "box", "instructions": "where"}})).encode(),
        json.dumps(asked(questions={"q": {"type": "noul"}})).encode(),
        json.dumps(asked(questions={"q": SCORE | {"criteria": ["a", None]}})).encode(),
        json.dumps(asked(questions={"q": SCORE | {"criteria": {"0": "a"}}})).encode(),
        json.dumps(asked(questions={"q": CHOICE | {"criteria": {}}})).encode(),
        json.dumps(asked(questions={"q": CHOICE | {"criteria": WIDE}})).encode(),
    ],
)  # fmt: skip
def test_a_bad_body_is_422_and_the_next_request_is_answered(rig: Rig, body: bytes) -> None:
    reply = rig.ask(body)
    assert reply.status_code == 422
    for detail in reply.json()["detail"]:
        assert detail["loc"][0] == "body"
        assert detail["msg"] and detail["type"]
    assert rig.ask(asked()).status_code == 200


def test_every_wrong_field_is_named_at_its_place(rig: Rig) -> None:
    questions = {"one": {"type": "noul"}, "two": {"type": "choice", "criteria": {"a": 5}}}
    detail = rig.ask({"questions": questions}).json()["detail"]
    assert [entry["loc"] for entry in detail] == [
        ["body", "state"],
        ["body", "questions", "one", "noul", "instructions"],
        ["body", "questions", "two", "choice", "criteria"],
    ]


def test_what_others_refuse_is_accepted(rig: Rig) -> None:
    questions = {
        "structured": NOUL | {"instructions": {"task": ["decide"]}},
        "one-sided": {"type": "noul", "criteria": {"false": "dry"}},
        "widest": CHOICE | {"criteria": dict.fromkeys(map(str, range(255)), "text")},
        "single": CHOICE | {"criteria": {"only": None}},
        "one level": SCORE | {"criteria": ["only"]},
    }
    answers = rig.ask(asked(state=[1, {"a": "b"}], questions=questions, seed=1)).json()["answers"]
    assert list(answers) == list(questions)
    assert answers["single"]["confidence"] == answers["one level"]["confidence"] == 1
    assert len(answers["widest"]["probabilities"]) == 255


@pytest.mark.parametrize("name", ["jev-latest", "jev-preview", "fake/open-jev", None])
def test_accepted_models(rig: Rig, name: str | None) -> None:
    assert rig.ask(asked(model=name)).json()["model"] == "fake/open-jev"


def test_an_unknown_model_is_400_and_the_message_names_the_known(rig: Rig) -> None:
    reply = rig.ask(asked(model="gpt"))
    assert reply.status_code == 400
    assert "fake/open-jev" in reply.json()["detail"]["message"]


def test_a_prompt_over_the_limit_is_refused_at_once_with_question_count_and_limit(rig: Rig) -> None:
    limit = rig.engine.family.limits.max_prompt_tokens
    reply = rig.ask(asked(state="x" * (limit + 1)))
    assert reply.status_code == 400
    message = reply.json()["detail"]["message"]
    assert "'q'" in message and str(limit) in message


def test_limits_of_the_service_are_its_settings() -> None:
    with running(max_questions=2, max_candidates=3, max_body_bytes=2000) as rig:
        reply = rig.ask(asked(questions={"a": NOUL, "b": NOUL, "c": NOUL}))
        assert reply.status_code == 400
        assert "3 questions" in reply.json()["detail"]["message"]
        reply = rig.ask(asked(questions={"a": SCORE, "b": NOUL}))
        assert reply.status_code == 400
        assert "4 candidates" in reply.json()["detail"]["message"]
        reply = rig.ask(asked(state="x" * 2000))
        assert reply.status_code == 413
        assert "2000" in reply.json()["detail"]["message"]
        assert rig.ask(asked()).status_code == 200


def test_sixty_four_questions_of_sixty_four_from_a_small_body_are_answered_in_parts() -> None:
    engine = FakeEngine(max_rows=4096)
    with running(engine) as rig:
        options = {chr(97 + i // 26) + chr(97 + i % 26): None for i in range(64)}
        questions = {str(i): {"type": "choice", "criteria": options} for i in range(64)}
        reply = rig.ask(asked(questions=questions))
        assert reply.status_code == 200
        assert len(reply.json()["answers"]) == 64
        assert len(engine.passes) > 10


def test_the_models_listing_suits_both_sdks(rig: Rig) -> None:
    body = rig.client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [one["id"] for one in body["data"]] == [one["name"] for one in body["models"]]
    for one in body["models"]:
        assert rig.ask(asked(model=one["name"])).status_code == 200
        assert isinstance(one["release_date"], str) and isinstance(one["description"], str)
        assert one["limits"]["max_body_bytes"] == 4 << 20


def test_token_counts_are_what_a_request_costs_and_nothing_runs(rig: Rig) -> None:
    before = len(rig.engine.passes)
    counts = rig.ask(asked(questions=ALL), path="/v1/systemone/tokens").json()
    assert len(rig.engine.passes) == before
    assert rig.ask(asked(questions=ALL)).json()["usage"]["input_tokens"] == counts["input_tokens"]
    assert counts["unique_tokens"] < counts["input_tokens"]
    assert {name: one["prompts"] for name, one in counts["questions"].items()} == {
        "n": 1, "c": 2, "s": 3,
    }  # fmt: skip
    total = sum(one["input_tokens"] for one in counts["questions"].values())
    assert total == counts["input_tokens"]
    assert rig.ask(asked(state=None), path="/v1/systemone/tokens").status_code == 422


def test_openrouters_path_takes_the_same_body(rig: Rig) -> None:
    one, other = rig.ask(asked()).json(), rig.ask(asked(), path="/api/alpha/decisions").json()
    assert one["answers"] == other["answers"]


def test_a_fault_of_ours_is_500_without_request_text(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("It rains. secret")

    monkeypatch.setattr(rig.engine, "answer", broken)
    reply = rig.ask(asked())
    assert reply.status_code == 500
    assert reply.json()["detail"]["error_type"] == "internal_error"
    assert "secret" not in reply.text
    assert "KeyError" in caplog.text
    assert "secret" not in caplog.text
    monkeypatch.undo()
    assert rig.ask(asked()).status_code == 200


def test_head_is_answered_where_get_is(rig: Rig) -> None:
    reply = rig.client.head("/health")
    assert reply.status_code == 200
    assert reply.content == b""
