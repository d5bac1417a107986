from __future__ import annotations

import json
from pathlib import Path

import pytest

from adjudge.cli import main


def test_a_family_and_a_geometry_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "open_jev" in {row["family"] for row in listed["families"]}
    assert {row["geometry"] for row in listed["geometries"]} >= {"2b", "9b", "27b"}


def test_a_folder_is_described(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", str(demo)]) == 0
    shown = capsys.readouterr().out
    assert "open_jev" in shown
    assert "num_hidden_layers" in shown


def test_convert_writes_a_folder_that_loads(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "merged"
    assert main(["convert", str(demo), str(target)]) == 0
    assert main(["models", str(demo), "--json"]) == 0
    before = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert main(["models", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == before


def test_convert_refuses_an_existing_folder(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(demo), str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_convert_needs_two_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(tmp_path)]) == 2
    assert "adjudge convert FOLDER TARGET" in capsys.readouterr().err


def test_an_unknown_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
