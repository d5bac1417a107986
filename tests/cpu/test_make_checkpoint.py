"""scripts/make_checkpoint: what it refuses, and how it ends when it cannot begin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adjudge.checkpoint.make import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "make_checkpoint"


@pytest.mark.parametrize(
    "flag, value, said",
    [
        ("--max-length", "-5", "max_length is -5; it is 1 to 16384 tokens"),
        ("--max-length", "0", "max_length is 0"),
        ("--max-length", "16385", "max_length is 16385"),
        ("--shard-bytes", "0", "shard_bytes is 0; it is at least 1"),
        ("--shard-bytes", "-1", "shard_bytes is -1"),
    ],
)
def test_numbers_out_of_range(
    flag: str, value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "made"), flag, value]) == 1
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_tells_each_choice_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("default: open_jev", "bytes: a token a byte", "default: bytes", "as `convert`"):
        assert said in shown


def run_script(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, folder],
        env=os.environ | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_an_environment(tmp_path: Path) -> None:
    done = run_script(tmp_path / "made", VENV=str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stderr == (
        f"make_checkpoint: there is no {tmp_path}/none/bin/python; run scripts/environment first\n"
    )


def test_an_interruption_while_it_starts_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run_script(tmp_path / "made", VENV=sys.prefix, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (130, "")


def test_it_writes_a_folder(tmp_path: Path) -> None:
    done = run_script(tmp_path / "made", VENV=sys.prefix, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "made" / "config.json").is_file()
