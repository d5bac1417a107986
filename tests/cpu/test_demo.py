"""The demo checkpoint's cache: made once, made again when damaged, and refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adjudge.checkpoint import open_checkpoint
from adjudge.cli import main
from adjudge.demo import demo_folder
from adjudge.errors import ConfigError


def quiet(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "adjudge"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def test_it_is_made_once(cache: Path) -> None:
    folder = demo_folder(quiet)
    made = folder.stat()
    assert demo_folder(quiet) == folder
    assert folder.stat() == made
    assert list(cache.iterdir()) == [folder]


@pytest.mark.parametrize(
    "name, damage",
    [
        ("adjudge.json", Path.unlink),
        ("tokenizer.json", cut),
        ("config.json", cut),
        ("model.safetensors", cut),
    ],
)
def test_a_damaged_one_is_made_again(
    cache: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = demo_folder(quiet)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder / name)
    assert demo_folder(quiet) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert open_checkpoint(folder).card.random_weights
    assert list(cache.iterdir()) == [folder]


@pytest.mark.parametrize("place", ["/proc/none", "/dev/null"])
def test_a_cache_that_cannot_be_written(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME to a folder that can be written"):
        demo_folder(quiet)
    assert main(["plan", "--state", "late", "--noul", "Urgent?"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"adjudge plan: {place}")
    assert error.count("\n") == 1
