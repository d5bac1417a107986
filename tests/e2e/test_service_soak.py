"""The soak in short: many clients of every kind, and that it would notice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.soak import MOST_GROWTH, growth, run

SERVER = Path(__file__).parents[1] / "fake_server.py"


def soaked(folder: Path, **options: float) -> list[str]:
    command = [sys.executable, str(SERVER), str(folder)]
    watch = run(command, clients=16, distinct=24, **{"seconds": 2.0} | options)
    assert {"equal", "left", "malformed"} <= watch.counts.keys()
    return watch.faults


def test_a_crowd_gets_the_answers_that_each_request_has_alone(tmp_path: Path) -> None:
    assert soaked(tmp_path) == []


def test_an_answer_that_depends_on_its_batch_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "break").write_text("wrong")
    assert "an answer differs from the same request alone" in soaked(tmp_path)


@pytest.mark.parametrize("late, fails", [(104, False), (106, True)])
def test_growing_memory_is_noticed(late: int, fails: bool) -> None:
    grown = growth([90] * 5 + [100] * 6 + [late] * 20, 10)
    assert grown is not None and (grown > MOST_GROWTH) == fails
    assert growth([100] * 5, 10) is None
