"""`adjudge bench serve` against a server with a planted fault: no figure leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adjudge.cli import main

ROOT = Path(__file__).parents[2]


@contextmanager
def served(*words: str) -> Iterator[str]:
    """The address of the service on a fake engine; words: see tests/served_engine.py."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.served_engine", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    with process, process.stdout:
        word, _, url = process.stdout.readline().strip().partition(" ")
        assert word == "ready"
        try:
            yield url
        finally:
            process.terminate()


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs `bench serve` in bytes with a small load. Returns exit code and standard output."""

    def run(*words: str) -> tuple[int, str]:
        code = main(["bench", "serve", *words, "--vocabulary", "bytes", "--warm-up", "8"])
        captured = capsys.readouterr()
        (tmp_path / "stderr").write_text(captured.err)
        return code, captured.out

    return run


@pytest.fixture(scope="module")
def sound() -> Iterator[str]:
    with served("none") as url:
        yield url


def test_a_sound_server_is_measured(
    sound: str, bench: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    out, page = tmp_path / "result.json", tmp_path / "page.html"
    load = ["--concurrency", "1", "4", "--rate", "200", "--rounds", "2", "--sample", "24"]
    code, shown = bench(sound, *load, "--out", str(out), "--html", str(page))
    assert code == 0
    assert "closed loop, 4" in shown
    assert "open loop, 200/s" in shown

    result = json.loads(out.read_text())
    assert result["workload"] == "public-231, 24 of 231 requests"
    assert len(result["answers"]) == 24
    assert [one["requests"] for one in result["passes"]] == [48, 48, 48]
    assert all(len(times) == 2 for times in result["passes"][0]["times_ms"].values())
    assert all(one["unique_tokens_per_s"] > 0 for one in result["passes"])
    for one in result["passes"]:
        assert set(one["parts_ms"]) == {"queue", "tokenise", "run", "elsewhere"}
        assert sum(one["parts_ms"].values()) <= one["latency_ms"]["most"]
    assert 0 < result["client_ms"] < result["passes"][0]["latency_ms"]["mean"]
    evidence = result["evidence"]
    assert [gate["passed"] for gate in evidence["gates"]] == [True, True, True]
    assert evidence["server"]["/health"]["model"] == "fake/open-jev"
    assert evidence["command"].startswith("adjudge ")
    assert len(evidence["build"]["source_sha256"]) == 64
    assert evidence["machine"]["num_cpus"] >= 1
    assert evidence["libraries"]["numpy"]

    text = page.read_text()
    assert text.count("<svg") == 2
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "").replace(sound, "")


@pytest.mark.parametrize(
    "fault, gate",
    [
        ("sum", "every answer valid"),
        ("argmax", "every answer valid"),
        ("expectation", "every answer valid"),
        ("range", "every answer valid"),
        ("name", "every answer valid"),
        ("batch", "answers byte-equal between passes"),
        ("error", "every request answered"),
        ("sibling", "a question alone = among its siblings"),
    ],
)
def test_a_wrong_answer_shows_no_figure(
    fault: str, gate: str, bench: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    out, page = tmp_path / "result.json", tmp_path / "page.html"
    files = ["--out", str(out), "--html", str(page)]
    name = {"sibling": "m2", "expectation": "m3"}.get(fault, "public-231")
    workload = ["--workload", name, "--sample", "3" if name == "m2" else "20"]
    with served(fault) as url:
        code, shown = bench(url, "--rounds", "1", *workload, *files)
    assert code == 1
    assert shown == ""
    assert not out.exists()
    assert not page.exists()
    assert f"FAILED  {gate}" in (tmp_path / "stderr").read_text()


def test_a_server_without_equal_bytes_is_measured_when_told(
    bench: Callable[..., tuple[int, str]],
) -> None:
    with served("batch") as url:
        code, shown = bench(url, "--rounds", "1", "--sample", "20", "--allow-inexact")
    assert code == 0
    assert "passed    answers byte-equal between passes (not required): " in shown


def test_a_key_is_sent(
    bench: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served("none", "secret") as url:
        assert bench(url, "--rounds", "1", "--sample", "4")[0] == 1
        monkeypatch.setenv("ADJUDGE_API_KEY", "secret")
        assert bench(url, "--rounds", "1", "--sample", "4")[0] == 0


def test_requests_of_ones_own_with_labels(
    sound: str, bench: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    noul = {"type": "noul", "instructions": "Late?"}
    team = {"type": "choice", "criteria": {"a": None, "b": None}}
    mood = {"type": "score", "criteria": ["low", "high"]}
    lines = [
        {"state": "plain", "questions": {"q": noul}},
        {
            "id": "two",
            "request": {"state": {"a": 1}, "questions": {"n": noul, "c": team, "s": mood}},
            "labels": {"n": True, "c": "b", "s": 1},
        },
    ]
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "result.json"
    assert bench(sound, "--workload", str(file), "--rounds", "1", "--out", str(out))[0] == 0
    result = json.loads(out.read_text())
    answers = result["answers"]
    assert list(answers) == ["line 1", "two"]
    quality = result["quality"]
    assert quality["labelled"] == 3
    assert quality["noul_brier"] == pytest.approx((answers["two"]["n"]["noul"] - 1) ** 2)
    assert quality["level_error"] == pytest.approx(1 - answers["two"]["s"]["score"])
    assert quality["choice_accuracy"] == (answers["two"]["c"]["choice"] == "b")


def test_an_address_where_nobody_listens_exits_2(bench: Callable[..., tuple[int, str]]) -> None:
    assert bench("http://127.0.0.1:9", "--sample", "1") == (2, "")
