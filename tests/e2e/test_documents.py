"""The README is run: its Python and shell blocks, against a server on a demo checkpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adjudge.cli import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
RUNNABLE = [(kind, block) for kind, block in BLOCKS if "scripts/check" not in block]


@pytest.fixture(scope="module")
def server(demo: Path) -> Iterator[str]:
    """The address of `adjudge serve` on the demo checkpoint."""
    process = subprocess.Popen(
        [sys.executable, "-m", "adjudge", "serve", str(demo), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    with process, process.stdout:
        word, _, url = process.stdout.readline().strip().partition(" ")
        assert word == "ready"
        yield url
        process.terminate()
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("number", range(len(RUNNABLE)))
def test_readme_block_runs(number: int, server: str, demo: Path, tmp_path: Path) -> None:
    kind, block = RUNNABLE[number]
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "checkpoint").symlink_to(demo)
    (tmp_path / "request.json").write_text(
        '{"state": "s", "questions": {"q": {"type": "noul", "instructions": "i"}}}'
    )
    program = block.replace("http://127.0.0.1:8000", server)
    runner = [sys.executable, "-c"] if kind == "python" else ["bash", "-euo", "pipefail", "-c"]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    done = subprocess.run(
        [*runner, program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_demo_shows_an_answer(tmp_path: Path) -> None:
    environment = os.environ | {
        "VENV": str(Path(sys.prefix)),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [ROOT / "scripts" / "demo"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Its weights are random" in done.stderr
    assert "shipping" in done.stdout
    assert "tokens read" in done.stdout


def test_readme_lists_every_command() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("document", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document.name}: {target}"
