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


def test_a_short_soak_finds_nothing(demo: Path) -> None:
    command = [sys.executable, "-m", "adjudge", "serve", str(demo), "--port", "0"]
    watch = run(command, seconds=3, clients=12, distinct=16)
    assert watch.faults == []
    assert watch.counts["equal"] > 0
