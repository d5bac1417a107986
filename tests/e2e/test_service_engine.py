"""`adjudge serve` on the demo checkpoint: the conformance suite, and answers that nothing moves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from jevcompat import runner

from adjudge.proof.own_server import OwnServer
from bench.soak import run
from tests.service_rig import CHOICE, NOUL, SCORE, SOON


@pytest.fixture(scope="module")
def url(demo: Path) -> Iterator[str]:
    with OwnServer([str(demo)]) as server:
        yield server.url


def test_the_conformance_suite_finds_nothing(url: str) -> None:
    report = runner.run(url)
    assert report.verdict == "conformant"
    assert not [result.id for result in report.results if result.status == "fail"]


def test_an_answer_is_the_same_alone_and_in_a_crowd(url: str) -> None:
    requests = [
        {
            "state": f"State {i % 3}. " * (1 + i % 5),
            "questions": {"n": NOUL, "c": CHOICE, "s": SCORE},
        }
        for i in range(24)
    ]

    def ask(body: dict[str, Any]) -> Any:
        reply = httpx.post(f"{url}/v1/systemone", json=body, timeout=SOON)
        assert reply.status_code == 200
        return reply.json()["answers"]

    alone = [ask(body) for body in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, reversed(requests))) == alone[::-1]
    assert len({str(answers) for answers in alone}) == 15


def test_states_serve_their_own_salt_and_move_no_answer(demo: Path, url: str) -> None:
    body = {"state": "It rains, and it rains. " * 9, "questions": {"n": NOUL, "c": CHOICE}}
    with OwnServer([str(demo), "--prefix-cache-mib", "8"]) as server:

        def ask(at: str, path: str = "/v1/systemone", **more: Any) -> Any:
            reply = httpx.post(f"{at}{path}", json=body | more, timeout=SOON)
            assert reply.status_code == 200
            return reply.json()

        def hits(reply: Any) -> int:
            return reply["x_metadata"]["prefix_cache"]["hit_tokens"]

        replies = [ask(server.url, cache_salt=salt) for salt in (None, None, "a", "b", "a", None)]
        found = [hits(reply) for reply in replies]
        assert [hit > 0 for hit in found] == [False, True, False, False, True, True]
        assert all(reply["answers"] == ask(url)["answers"] for reply in replies)
        assert hits(ask(url)) == 0
        metrics = httpx.get(f"{server.url}/metrics").text
        assert f"adjudge_prefix_hit_tokens_total {sum(found):.1f}" in metrics
        states = httpx.get(f"{server.url}/health").json()["engine"]["prefix_cache"]
        assert states["hit_tokens"] == sum(found) and states["states"] == states["kept"] == 3
        question = {"type": "predicate", "instructions": "Is it wet?"}
        listed = [
            httpx.post(
                f"{server.url}/v1/decisions",
                json={"input": body["state"], "questions": [question], "cache_salt": "c"},
                timeout=SOON,
            ).json()
            for _ in range(2)
        ]
        cached = [one["usage"]["input_tokens_details"]["cached_tokens"] for one in listed]
        assert cached[0] == 0 < cached[1] and listed[0]["answers"] == listed[1]["answers"]


def test_a_short_soak_on_states_finds_nothing(demo: Path) -> None:
    command = [sys.executable, "-m", "adjudge", "serve", str(demo), "--port", "0"]
    watch = run([*command, "--prefix-cache-mib", "1"], seconds=3, clients=12, distinct=16)
    assert watch.faults == []
    assert watch.counts["equal"] > 0


def test_a_short_soak_finds_nothing(demo: Path) -> None:
    command = [sys.executable, "-m", "adjudge", "serve", str(demo), "--port", "0"]
    watch = run(command, seconds=3, clients=12, distinct=16)
    assert watch.faults == []
    assert watch.counts["equal"] > 0
