from __future__ import annotations

import json

import pytest

from adjudge.cli import main


def test_a_family_and_a_geometry_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "open_jev" in {row["family"] for row in listed["families"]}
    assert {row["geometry"] for row in listed["geometries"]} >= {"2b", "9b", "27b"}
