"""The programs of bench/ that measure a server run, in a short form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_path_of_a_request_has_no_gap(demo: Path) -> None:
    program = ROOT / "bench" / "request_path.py"
    words = [sys.executable, str(program), str(demo), "--requests", "9", "--no-self-check"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["steps_ms"]) == 9
    assert all(ms > 0 for ms in found["steps_ms"].values())
    assert sum(found["steps_ms"].values()) == pytest.approx(found["total_ms"], rel=0.5)
    assert 0 < found["outside_forward_ms"] < found["total_ms"]
