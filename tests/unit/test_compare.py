"""`adjudge compare`: drift, flips, latency ratios, limits, and files that do not fit together."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adjudge.cli import main
from adjudge.proof.comparison import Limits, compare, exceeded
from adjudge.proof.result import ServeResult, write_result
from adjudge.proof.spread import mean_ratio
from tests.made_results import ANSWERS, engine_result, serve_result

TIMES = {"r1": (10.0, 12.0), "r2": (20.0, 22.0)}


@pytest.fixture
def moved() -> dict[str, dict[str, Any]]:
    """ANSWERS with every kind of answer moved; the noul and the choice flip."""
    changed = copy.deepcopy(ANSWERS)
    changed["r1"]["n"]["noul"] = 0.49
    changed["r1"]["c"] |= {"choice": "b", "probabilities": {"a": 0.45, "b": 0.55}}
    changed["r2"]["s"] |= {"score": 1.25, "probabilities": {"0": 0.2, "1": 0.35, "2": 0.45}}
    return changed


def test_equal_results_have_no_drift() -> None:
    found = compare(serve_result(TIMES), serve_result(TIMES))
    assert found.drift is not None
    assert found.drift.flipped == ()
    assert found.drift.decisions == 3
    assert found.drift.probability.most == 0
    (speed,) = found.speeds
    assert speed.ratio == 1
    limits = Limits(flips=0, probability=0.0, score=0.0, latency_ratio=1.0)
    assert exceeded(found, limits) == []


def test_drift_and_flips_are_found(moved: dict[str, dict[str, Any]]) -> None:
    found = compare(serve_result(TIMES), serve_result(TIMES, moved))
    assert found.drift is not None
    assert found.drift.flipped == (
        "r1, n: yes → no",
        "r1, c: a → b",
        "r2, s: level 1 → level 2",
    )
    assert found.drift.probability.most == pytest.approx(0.15)
    assert found.drift.score is not None
    assert found.drift.score.most == pytest.approx(0.05)
    said = exceeded(found, Limits(flips=2, probability=0.1, score=0.01))
    assert len(said) == 3
    assert "flipped decisions is 3, and at most 2" in said[0]
    assert exceeded(found, Limits(flips=3, probability=0.2, score=0.1)) == []


def test_a_slower_build_is_found_with_confidence() -> None:
    base = {f"r{i}": (10.0 + i % 7, 10.5 + i % 7) for i in range(40)}
    slower = {name: tuple(1.2 * time for time in times) for name, times in base.items()}
    answers = dict.fromkeys(base, ANSWERS["r1"])
    found = compare(serve_result(base, answers), serve_result(slower, answers))
    (speed,) = found.speeds
    assert speed.interval is not None
    assert speed.interval.low <= speed.ratio == pytest.approx(1.2)
    assert exceeded(found, Limits(latency_ratio=1.1))
    assert not exceeded(found, Limits(latency_ratio=1.21))


def test_one_slow_request_among_many_is_no_certainty() -> None:
    times = [10.0] * 30
    interval = mean_ratio(times, [40.0, *times[1:]])
    assert interval.value == pytest.approx(1.1)
    assert interval.low == pytest.approx(1.0)
    assert interval.high > 1.2


def test_recorded_answers_of_any_server(
    tmp_path: Path, moved: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = tmp_path / "a.json", tmp_path / "b.jsonl"
    write_result(ours, serve_result(TIMES))
    lines = [
        {"id": "r1", "answers": moved["r1"]},
        {"id": "r2", "response": {"model": "other", "answers": moved["r2"]}},
        {"id": "r3", "answers": moved["r1"]},
    ]
    theirs.write_text("\n".join(map(json.dumps, lines)))
    assert main(["compare", str(ours), str(theirs)]) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 decisions flipped" in shown
    assert "only in B: 1 requests, the first 'r3'" in shown
    assert main(["compare", str(ours), str(theirs), "--max-flips", "0", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["exceeded"] == [captured.err.strip()]


def test_engine_results_compare_by_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    write_result(a, engine_result(4.0))
    write_result(b, engine_result(5.0))
    assert main(["compare", str(a), str(b), "--max-latency-ratio", "1.2"]) == 1
    captured = capsys.readouterr()
    assert "1.250" in captured.out
    assert "the latency ratio of 64 × 1 is 1.25, and at most 1.2 is allowed" in captured.err
    write_result(b, serve_result(TIMES))
    assert main(["compare", str(a), str(b)]) == 2


def test_a_result_reads_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    result = serve_result(TIMES)
    write_result(path, result)
    assert msgspec.json.decode(path.read_bytes(), type=ServeResult) == result


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a.pop("r1") and a.pop("r2"), "no answer|no request id"),
        (lambda a: a["r1"].pop("n"), "answer different questions"),
        (lambda a: a["r1"].update(n=a["r2"]["s"]), "a noul answer against a score answer"),
        (lambda a: a["r1"]["c"]["probabilities"].update(z=0.0), "different candidates"),
    ],
)
def test_answers_that_do_not_fit_are_refused(
    change: Callable[[Any], Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = copy.deepcopy(ANSWERS)
    changed["other"] = copy.deepcopy(ANSWERS["r1"])
    change(changed)
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, answers in ((a, ANSWERS), (b, changed)):
        lines = [json.dumps({"id": name, "answers": one}) for name, one in answers.items()]
        path.write_text("\n".join(lines))
    assert main(["compare", str(a), str(b)]) == 2
    error = capsys.readouterr().err
    assert any(part in error for part in message.split("|")), error


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "neither a result"),
        ("[1]", "no recorded answers"),
        ('{"kind": "chess"}', "a result of kind 'chess'"),
        ('{"kind": "serve"}', "no result of this version"),
        ('{"id": "a", "answers": {"q": {"type": "noul"}}}', "line 1: no recorded answers"),
        ('{"id": "a", "answers": {}}\n{"id": "a", "answers": {}}', "line 2: the id 'a'"),
    ],
)
def test_files_that_are_no_results_are_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    assert main(["compare", str(path), str(path)]) == 2
    assert message in capsys.readouterr().err


def test_runs_of_different_requests_are_refused(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    write_result(a, serve_result(TIMES))
    b.write_text(a.read_text().replace("0" * 64, "1" * 64))
    assert main(["compare", str(a), str(b)]) == 2
    assert main(["compare", str(a), str(tmp_path / "none")]) == 2
