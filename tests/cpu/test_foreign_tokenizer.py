"""A tokenizer that does not belong to its model is refused wherever the model is opened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adjudge.cli import main

Change = Callable[[dict[str, Any]], object]
ASKED = ("--state", "late", "--noul", "Urgent?")


def drop_chat(content: dict[str, Any]) -> None:
    content["added_tokens"] = []


@pytest.fixture
def changed(demo: Path, tmp_path: Path) -> Callable[[Change], Path]:
    def change(edit: Change) -> Path:
        folder = Path(shutil.copytree(demo, tmp_path / "changed"))
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        edit(content)
        path.write_text(json.dumps(content))
        return folder

    return change


def every_opening(folder: Path, tmp_path: Path) -> dict[str, list[str]]:
    at = str(folder)
    return {
        "ask": ["ask", at, *ASKED, "--device", "cpu"],
        "plan": ["plan", "--model", at, *ASKED],
        "models": ["models", at],
        "convert": ["convert", at, str(tmp_path / "converted")],
        "check": ["check", at, "--device", "cpu"],
        "serve": ["serve", at, "--dry-run", "--port", "0", "--device", "cpu"],
    }


def test_without_the_chats_tokens(
    changed: Callable[[Change], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, words in every_opening(changed(drop_chat), tmp_path).items():
        assert main(words) == 2, name
        assert "special token '<|im_start|>' as 12 tokens" in capsys.readouterr().err, name
    assert not (tmp_path / "converted").exists()


def test_more_ids_than_rows(
    changed: Callable[[Change], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(lambda content: grow(content, 1025))
    for name, words in every_opening(folder, tmp_path).items():
        assert main(words) == 2, name
        error = capsys.readouterr().err
        assert f"{folder}/tokenizer.json: 1,025 ids up to 1,024" in error, name
        assert f"vocab_size in {folder}/config.json is 1,024" in error, name


def test_as_many_ids_as_rows(
    changed: Callable[[Change], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(lambda content: grow(content, 1024))
    assert main(["models", str(folder)]) == 0
    assert capsys.readouterr().err == ""


def grow(content: dict[str, Any], num_ids: int) -> None:
    """Adds special tokens until there are so many ids."""
    like = content["added_tokens"][-1]
    for number in range(like["id"] + 1, num_ids):
        content["added_tokens"].append({**like, "id": number, "content": f"<more_{number}>"})
