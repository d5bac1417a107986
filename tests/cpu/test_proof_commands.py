"""`adjudge check` and `adjudge parity` on a small checkpoint, whole and with planted faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from adjudge.cli import main
from adjudge.executor import Executor
from adjudge.self_check import CheckRow

REQUESTS = ["--requests", "public-231", "--vocabulary", "bytes", "--sample", "4"]


def test_check_shows_every_comparison(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "check.json"
    assert main(["check", str(demo), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    result = json.loads(out.read_text())
    assert {row["name"] for row in result["rows"]} == {"product", "pass"}
    assert all(row["passed"] for row in result["rows"])
    assert all(row["shape"] in shown for row in result["rows"])
    assert result["evidence"]["gates"][0]["passed"]


def test_check_exits_1_when_a_bit_differs(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(executor: Executor, *, full: bool) -> Iterator[CheckRow]:
        assert full
        yield CheckRow("product", "[8, 8]", "2 row counts", True)
        yield CheckRow("product", "[4, 4]", "differs at [7] rows", False)

    monkeypatch.setattr("adjudge.proof.exactness.self_check", rows)
    assert main(["check", str(demo), "--full"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED" in shown
    assert "FAILED    every comparison holds: 1 of 2 failed" in shown


@pytest.mark.parametrize("adapter", ["merged", "unmerged"])
def test_parity_in_float32(demo: Path, tmp_path: Path, adapter: str) -> None:
    out = tmp_path / "parity.json"
    limits = ["--max-hidden-distance", "2e-5", "--max-probability-drift", "1e-4"]
    words = [str(demo), *REQUESTS, "--adapter", adapter, *limits, "--out", str(out)]
    assert main(["parity", *words, "--max-flips", "0"]) == 0
    result = json.loads(out.read_text())
    (pair,) = result["pairs"]
    assert pair["name"] == "adjudge against transformers float32"
    assert pair["drift"]["decisions"] == 4
    assert 0 < pair["hidden"]["p50"] < 2e-5


def test_parity_of_two_dtypes(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", str(demo), *REQUESTS, "--dtype", "bfloat16", "--float32"]) == 0
    shown = capsys.readouterr().out
    for name in (
        "adjudge against transformers bfloat16",
        "adjudge against transformers float32",
        "transformers bfloat16 against transformers float32",
    ):
        assert name in shown
    assert "2 of 318 decisions" in shown


def test_parity_notices_a_wrong_model(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Executor.hidden
    monkeypatch.setattr(Executor, "hidden", lambda self, plan: sound(self, plan) * 1.01)
    words = [str(demo), *REQUESTS, "--no-self-check", "--max-hidden-distance", "0.005"]
    assert main(["parity", *words]) == 1
    assert "the largest hidden distance is 0.01" in capsys.readouterr().err


def test_parity_names_a_request_that_the_model_refuses(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"state": "s", "questions": {"q": {"type": "noul"}}}')
    assert main(["parity", str(demo), "--requests", str(file)]) == 2
    assert "requests.jsonl, line 1:" in capsys.readouterr().err
