"""Several engines in one server: routing by name, limits of their own, one queue, own answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from adjudge.families.open_jev import OpenJev
from tests.fake_engine import CARD, FakeEngine
from tests.service_rig import CHOICE, NOUL, SOON, Rig, running

OTHER = replace(CARD, name="fake/other", aliases=("other-alias",), calibration={"temperature": 0.5})


def other_engine() -> FakeEngine:
    engine = FakeEngine(card=OTHER)
    engine.family = OpenJev(OTHER, replace(engine.family.limits, max_prompt_tokens=300))
    return engine


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(more={"given": other_engine()}) as one:
        yield one


def asked(model: str | None, **changes: Any) -> dict[str, Any]:
    return {"state": "It rains.", "model": model, "questions": {"q": NOUL}} | changes


@pytest.mark.parametrize(
    "name, model",
    [
        (None, "fake/open-jev"),
        ("jev-latest", "fake/open-jev"),
        ("jev-preview", "fake/open-jev"),
        ("fake/open-jev", "fake/open-jev"),
        ("given", "fake/other"),
        ("fake/other", "fake/other"),
        ("other-alias", "fake/other"),
    ],
)
def test_a_name_means_one_engine_on_every_route(rig: Rig, name: str | None, model: str) -> None:
    assert rig.ask(asked(name)).json()["model"] == model
    assert rig.ask(asked(name), path="/v1/systemone/tokens").json()["model"] == model
    listed = [{"type": "predicate", "instructions": "i"}]
    body = {"model": name, "input": "text", "questions": listed}
    assert rig.ask(body, path="/v1/decisions").json()["model"] == model


def test_an_answer_tells_which_of_two_models_of_one_name_spoke() -> None:
    """Two checkpoints of a family may have one name; those they are served as differ."""
    with running(more={"twin": FakeEngine()}) as rig:
        for name in ("fake/open-jev", "twin"):
            body = rig.ask(asked(name)).json()
            assert body["model"] == "fake/open-jev"
            assert body["x_metadata"]["served_as"] == name
            counts = rig.ask(asked(name), path="/v1/systemone/tokens").json()
            assert counts["x_served_as"] == name
    with running() as alone:
        counts = alone.ask(asked(None), path="/v1/systemone/tokens").json()
        assert "x_served_as" not in counts
        assert "served_as" not in alone.ask(asked(None)).json()["x_metadata"]


def test_an_unknown_name_is_400_and_the_message_lists_the_known(rig: Rig) -> None:
    reply = rig.ask(asked("gpt"))
    assert reply.status_code == 400
    for name in ("fake/open-jev", "given", "other-alias", "jev-latest"):
        assert name in reply.json()["detail"]["message"]


def test_each_engine_has_limits_of_its_own(rig: Rig) -> None:
    wide = {"state": "x" * 500}
    assert rig.ask(asked("fake/open-jev", **wide)).status_code == 200
    reply = rig.ask(asked("given", **wide))
    assert reply.status_code == 400
    assert "300" in reply.json()["detail"]["message"]


def test_a_body_is_held_to_the_limit_of_the_model_that_it_names() -> None:
    """The server reads as much as its widest model takes; then the named model's limit counts."""
    wide = FakeEngine(card=OTHER)
    wide.family = OpenJev(OTHER, replace(wide.family.limits, max_body_bytes=8 << 20))
    middle, large = {"ignored": "x" * (4 << 20)}, {"ignored": "x" * (8 << 20)}
    with running(more={"wide": wide}) as rig:
        listed = {one["name"]: one for one in rig.client.get("/v1/models").json()["models"]}
        assert listed["wide"]["limits"]["max_body_bytes"] == 8 << 20
        assert listed["fake/open-jev"]["limits"]["max_body_bytes"] == 4 << 20
        assert "8388608 bytes" in rig.client.get("/openapi.json").json()["info"]["description"]
        assert rig.ask(asked("wide", **middle)).status_code == 200
        assert rig.ask(asked("wide", **large)).status_code == 413
        for path in ("/v1/systemone", "/v1/systemone/tokens", "/api/alpha/decisions"):
            reply = rig.ask(asked(None, **middle), path=path)
            assert reply.status_code == 413
            told = reply.json()["detail"]
            assert told["error_type"] == "api_usage_error"
            assert "fake/open-jev takes 4194304" in told["message"]
    with running(more={"wide": wide}, max_body_bytes=2000) as rig:
        assert rig.ask(asked("wide", ignored="x" * 2000)).status_code == 413
        limits = [one["limits"] for one in rig.client.get("/v1/models").json()["models"]]
        assert {one["max_body_bytes"] for one in limits} == {2000}
    with running(max_body_bytes=6 << 20) as rig:
        assert rig.ask(asked(None, **middle)).status_code == 200


def test_the_listing_names_every_engine(rig: Rig) -> None:
    models = {one["name"]: one for one in rig.client.get("/v1/models").json()["models"]}
    assert {"fake/open-jev", "jev-latest", "given", "fake/other", "other-alias"} <= set(models)
    assert models["given"]["limits"]["max_prompt_tokens"] == 300
    assert models["jev-latest"]["description"].endswith("fake/open-jev")
    for name in models:
        assert rig.ask(asked(name)).status_code == 200
    assert set(rig.client.get("/health").json()["engines"]) == {"fake/open-jev", "given"}


def test_answers_under_mixed_load_are_those_of_a_server_of_its_own(rig: Rig) -> None:
    requests = [
        asked(name, state=f"state {i}", questions={"q": CHOICE, "r": NOUL})
        for i in range(20)
        for name in ("fake/open-jev", "given")
    ]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(rig.ask, requests, timeout=SOON))
    together = [reply.json()["answers"] for reply in replies]
    with running(FakeEngine()) as one, running(other_engine()) as other:
        alone = [
            (other if request["model"] == "given" else one).ask(request | {"model": None}).json()
            for request in requests
        ]
    assert together == [body["answers"] for body in alone]
    assert together[0] != together[1]


def test_the_deep_check_asks_every_engine(rig: Rig) -> None:
    passes = len(rig.engine.passes)
    assert rig.client.get("/health?deep=1").status_code == 200
    assert len(rig.engine.passes) == passes + 1


def test_the_bare_body_is_served_where_its_family_is_loaded(rig: Rig) -> None:
    body = {"kind": "noul", "state": "It rains.", "question": "Is it wet?"}
    reply = rig.ask(body, path="/v1/decide")
    assert reply.status_code == 404
    assert "no model that is asked at /v1/decide is loaded here" in reply.text
    with running(FakeEngine(card=replace(CARD, name="fake/jev-vl", family="jev_vl"))) as bare:
        reply = bare.ask(body, path="/v1/decide").json()
        assert reply["kind"] == "noul"
        assert "x_served_as" not in reply
        assert sum(reply["probabilities"]) == pytest.approx(1)
        assert bare.ask({"kind": "noul"}, path="/v1/decide").status_code == 422
        document = bare.client.get("/openapi.json").json()
        assert "/v1/decide" in document["paths"]
        assert json.dumps(document)


def bare_engine(name: str) -> FakeEngine:
    card = replace(CARD, name=f"fake/{name}", family="jev_vl", aliases=())
    engine = FakeEngine(card=card)
    engine.family = OpenJev(card, replace(engine.family.limits, min_options=2, max_options=3))
    return engine


@pytest.fixture(scope="module")
def bare() -> Iterator[Rig]:
    """Open-Jev first, then two of the family that is asked at /v1/decide."""
    with running(more={name: bare_engine(name) for name in ("vl", "vl-too")}) as one:
        yield one


def decided(rig: Rig, **changes: Any) -> Any:
    body = {"kind": "choice", "state": "S", "question": "?", "options": ["a", "b"]}
    return rig.ask(body | changes, path="/v1/decide")


@pytest.mark.parametrize(
    "name, model",
    [
        (None, "fake/vl"),
        ("jev-latest", "fake/vl"),
        ("vl", "fake/vl"),
        ("vl-too", "fake/vl-too"),
        ("fake/vl-too", "fake/vl-too"),
    ],
)
def test_decide_asks_the_first_model_of_its_family(bare: Rig, name: str | None, model: str) -> None:
    body = decided(bare, model=name).json()
    assert (body["model"], body["x_served_as"]) == (model, model.removeprefix("fake/"))
    assert decided(bare, model=name, kind="noul", options=None).json()["model"] == model


@pytest.mark.parametrize("name", ["fake/open-jev", "open-jev"])
def test_decide_refuses_a_model_of_another_family(bare: Rig, name: str) -> None:
    reply = decided(bare, model=name)
    assert reply.status_code == 400
    message = reply.json()["detail"]["message"]
    assert "is not asked at /v1/decide" in message
    assert "send one of: vl, fake/vl, vl-too, fake/vl-too" in message


@pytest.mark.parametrize("options", [["a"], ["a", "b", "c", "d"], [], ["a", "a"], ["a", 1]])
def test_what_is_wrong_with_options_is_said_of_options(bare: Rig, options: list[Any]) -> None:
    """The counts too, which only the family knows."""
    reply = decided(bare, options=options)
    assert reply.status_code == 422
    assert [detail["loc"] for detail in reply.json()["detail"]] == [["body", "options"]]


def test_a_kind_that_the_model_does_not_answer_is_said_of_the_kind(bare: Rig) -> None:
    only = bare_engine("narrow")
    only.family = OpenJev(only.card, replace(only.family.limits, answers=("choice",)))
    with running(only) as one:
        reply = decided(one, kind="noul")
    assert reply.status_code == 422
    assert [detail["loc"] for detail in reply.json()["detail"]] == [["body", "kind"]]
