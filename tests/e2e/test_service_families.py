"""Checkpoints of several families in one server: answers under mixed load, limits of each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from adjudge.checkpoint.make import write_checkpoint
from adjudge.cli import main
from adjudge.families import FAMILIES, Limits, ModelCard, family_class
from adjudge.proof.own_server import OwnServer
from tests.random_requests import random_requests
from tests.service_rig import CHOICE, NOUL, SCORE, SOON

CLIENTS = 8
ROUNDS = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("families")
    return {family: write_checkpoint(place / family, family=family) for family in FAMILIES}


@pytest.fixture(scope="module")
def url(folders: dict[str, Path]) -> Iterator[str]:
    with OwnServer([f"{family}={folder}" for family, folder in folders.items()]) as server:
        yield server.url


def ask(url: str, body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/systemone", json=body, timeout=SOON)


def answers(url: str, body: Any) -> bytes:
    """The bytes between the braces of `answers`, as they were sent."""
    reply = ask(url, body)
    assert reply.status_code == 200, reply.text
    found = re.search(rb'"answers":(\{.*\}),"usage":', reply.content)
    assert found is not None
    return found[1]


def test_answers_under_mixed_load_are_those_of_a_server_of_its_own(
    folders: dict[str, Path], url: str
) -> None:
    """Byte for byte, for every family."""
    rng = np.random.default_rng(0)
    requests = {
        family: random_requests(limits_of(family), rng, count=ROUNDS) for family in FAMILIES
    }
    mixed = [(family, requests[family][i]) for i in range(ROUNDS) for family in FAMILIES]
    with ThreadPoolExecutor(CLIENTS) as pool:
        replies = list(pool.map(lambda one: answers(url, {**one[1], "model": one[0]}), mixed))
    found: dict[str, list[bytes]] = {family: [] for family in FAMILIES}
    for (family, _), reply in zip(mixed, replies, strict=True):
        found[family].append(reply)
    for family, folder in folders.items():
        with OwnServer([str(folder)]) as own:
            assert found[family] == [answers(own.url, body) for body in requests[family]], family
        assert len(set(found[family])) > ROUNDS // 2


def test_health_and_answers_say_what_became_of_each_adapter(url: str) -> None:
    uses = {family: family_class(family).about.adapter for family in FAMILIES}
    engines = httpx.get(f"{url}/health", timeout=SOON).json()["engines"]
    assert {family: engine["adapter"] for family, engine in engines.items()} == uses
    for family, use in uses.items():
        body = {"state": "S", "model": family, "questions": {"q": CHOICE}}
        assert ask(url, body).json()["x_metadata"]["adapter"] == use


@pytest.mark.parametrize("family", FAMILIES)
def test_a_server_and_a_folder_tell_the_same_limits(
    folders: dict[str, Path], url: str, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the prompt, both what the family takes and what the settings leave of it."""
    models = httpx.get(f"{url}/v1/models", timeout=SOON).json()["models"]
    (served,) = (one["limits"] for one in models if one["name"] == family)
    assert main(["models", str(folders[family]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limits"] == served
    limits = limits_of(family)
    assert tuple(served["answers"]) == limits.answers
    assert served["max_prompts"] == limits.max_prompts
    assert served["max_options"] == limits.max_options
    assert served["min_levels"] == (None if family == "cua_s1" else limits.min_levels)
    if family == "decider":
        assert served["family_max_prompt_tokens"] == 36_864
        assert served["max_prompt_tokens"] == 16_384
        main(["models", str(folders[family]), "--json", "--max-batch-tokens", "36864"])
        wide = json.loads(capsys.readouterr().out)["limits"]
        assert wide["max_prompt_tokens"] == wide["family_max_prompt_tokens"]


def test_a_state_longer_than_a_pass_is_refused_with_the_setting_that_admits_it(url: str) -> None:
    body = {"state": "word " * 20_000, "model": "decider", "questions": {"q": NOUL}}
    reply = ask(url, body)
    assert reply.status_code == 400
    assert reply.json()["detail"]["message"].endswith("--max-batch-tokens 36864")


def options(count: int) -> dict[str, None]:
    return {f"option {i}": None for i in range(count)}


ANSWERED = [
    ("decider", {"type": "choice", "instructions": "?", "criteria": options(255)}),
    ("cua_s1", {"type": "choice", "instructions": "?", "criteria": options(26)}),
    ("jemm", {"type": "choice", "instructions": "?", "criteria": options(32)}),
    ("jev_vl", {"type": "choice", "instructions": "?", "criteria": options(256)}),
    ("decider", {"type": "choice", "question": "?", "options": ["option 0", "option 1"]}),
    ("decider", {"type": "choice", "question": "?", "options": options(3)}),
]


@pytest.mark.parametrize("model, question", ANSWERED)
def test_as_many_options_as_a_family_takes(url: str, model: str, question: Any) -> None:
    reply = ask(url, {"state": "S", "model": model, "questions": {"q": question}})
    assert reply.status_code == 200, reply.text
    answer = reply.json()["answers"]["q"]
    given = question.get("criteria", question.get("options"))
    assert list(answer["probabilities"]) == list(given)
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=len(given) * 5e-5)
    assert answer["choice"] in given


LISTED = {"type": "choice", "instructions": "?", "criteria": ["a", "b"]}
REFUSED = [
    ("decider", {**CHOICE, "criteria": options(256)}, "256 options; this model takes 2 to 255"),
    ("decider", {**CHOICE, "criteria": options(1)}, "there is 1 option; this model takes 2 to 255"),
    ("decider", {**SCORE, "criteria": ["a"]}, "there is 1 level; this model takes 2 to 10"),
    ("cua_s1", {**CHOICE, "criteria": options(27)}, "27 options; this model takes 1 to 26"),
    ("jemm", {**CHOICE, "criteria": options(33)}, "33 options; this model takes 2 to 32"),
    ("jemm", {**SCORE, "criteria": ["a"] * 33}, "33 levels; this model takes 2 to 32"),
    ("jev_vl", {**CHOICE, "criteria": options(257)}, "257 options; this model takes 2 to 256"),
    ("jev_vl", SCORE, "3 levels; this model takes exactly 6"),
    ("cua_s1", NOUL, "does not answer noul questions; it answers choice"),
    ("cua_s1", SCORE, "does not answer score questions; it answers choice"),
    ("jemm", LISTED, "q"),
    ("open_jev", {"type": "bool", "instructions": "?"}, "q"),
]


@pytest.mark.parametrize("model, question, message", REFUSED)
def test_what_a_family_does_not_take_is_422_at_its_place(
    url: str, model: str, question: Any, message: str
) -> None:
    reply = ask(url, {"state": "S", "model": model, "questions": {"q": question, "r": CHOICE}})
    assert reply.status_code == 422, reply.text
    assert message in reply.text
    assert '"q"' in reply.text and '"r"' not in reply.text


@pytest.mark.parametrize("model", FAMILIES)
def test_an_option_without_a_description_is_read_by_its_name(url: str, model: str) -> None:
    """A null description and no text of its own: all families read the key in its place."""

    def probabilities(criteria: Any) -> list[float]:
        question = {"type": "choice", "instructions": "?", "criteria": criteria}
        body = {"state": "S", "model": model, "questions": {"q": question}}
        return list(ask(url, body).json()["answers"]["q"]["probabilities"].values())

    null = probabilities({"ship": None, "bill": None})
    assert null == probabilities({"ship": None, "bill": None})
    assert null != probabilities({"ship": None, "bill": "described"})
    assert null != probabilities({"ship": None, "others": None})


def test_the_aliases_of_a_question_mean_the_official_spelling(url: str) -> None:
    pairs = [
        ({"type": "bool", "question": "Late?"}, {"type": "noul", "instructions": "Late?"}),
        (
            {"type": "choice", "question": "Who?", "options": ["a", "b"]},
            {"type": "choice", "instructions": "Who?", "criteria": {"a": None, "b": None}},
        ),
    ]
    for alias, official in pairs:
        one, other = (
            answers(url, {"state": "S", "model": "decider", "questions": {"q": question}})
            for question in (alias, official)
        )
        assert one == other


def test_more_nouls_than_a_family_takes_are_400(url: str) -> None:
    body = {"state": "S", "model": "jemm", "questions": {str(i): NOUL for i in range(65)}}
    reply = ask(url, body)
    assert reply.status_code == 400
    assert "65 questions; the limit is 64" in reply.text


@pytest.mark.parametrize(
    "family, label", [("jev_vl", "true"), ("decider", None)], ids=["jev_vl", "decider"]
)
def test_a_label_of_two_tokens_keeps_a_checkpoint_from_being_served(
    folders: dict[str, Path],
    family: str,
    label: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """label: taken out of the vocabulary; None: all of two letters."""
    folder = Path(shutil.copytree(folders[family], tmp_path / "copy"))
    path = folder / "tokenizer.json"
    spelled = json.loads(path.read_text())
    pairs = {token for token in spelled["model"]["vocab"] if re.fullmatch("[A-Z]{2}", token)}
    for token in pairs if label is None else {label}:
        del spelled["model"]["vocab"][token]
    if label is None:
        spelled["model"]["merges"] = []
    path.write_text(json.dumps(spelled))
    assert main(["serve", str(folder), "--dry-run", "--port", "0", "--device", "cpu"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"the label {label or 'AA'!r} is not one token" in error


def limits_of(family: str) -> Limits:
    found: Limits = family_class(family).limits_for(ModelCard(name=family, family=family))
    return found
