"""An export is whole or absent, and neither it nor a load keeps two copies of the weights."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adjudge.checkpoint import open_checkpoint, random_checkpoint, safetensors_writer, write_export
from adjudge.checkpoint.atomic_folder import atomic_folder
from adjudge.checkpoint.made_base import small_config
from adjudge.checkpoint.make import main, write_checkpoint
from adjudge.checkpoint.synthetic import RandomWeights
from adjudge.errors import CheckpointError


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("export") / "package")


def test_progress_ends_with_all_bytes(package: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    target = write_export(
        open_checkpoint(package),
        tmp_path / "out",
        lambda what, done, total: told.append((done, total)),
    )
    assert told == sorted(told)
    total = sum(
        tensor.numel() * 2
        for name, tensor in (
            (name, open_checkpoint(package).weights.read(name, device="cpu", dtype=torch.bfloat16))
            for name in open_checkpoint(package).weights.names()
        )
    )
    assert told[-1] == (total, total)
    assert sorted(path.name for path in target.iterdir()) == [
        "adjudge.json",
        "config.json",
        "head.safetensors",
        "model.safetensors",
        "tokenizer.json",
    ]


@pytest.mark.parametrize("file", ["model-00002", "head.safetensors", "adjudge.json"])
def test_full_disk_leaves_nothing(
    package: Path, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills while one of the files is synced."""

    def fsync(handle: int) -> None:
        if file in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(safetensors_writer.os, "fsync", fsync)
    with pytest.raises(CheckpointError, match=r"out.*No space left on device; free space"):
        write_export(open_checkpoint(package), tmp_path / "out", shard_bytes=300_000)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    open_checkpoint(write_export(open_checkpoint(package), tmp_path / "out"))


def test_disk_too_small_is_refused_beforehand(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "adjudge.checkpoint.export.shutil.disk_usage",
        lambda folder: type("Usage", (), {"free": 1000})(),
    )
    with pytest.raises(CheckpointError, match="1000 bytes free, the export needs "):
        write_export(open_checkpoint(package), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_broken_weights_leave_nothing(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "package")
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-500:-400] = b"\xff" * 100  # in norm.weight
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not finite"):
        write_export(open_checkpoint(folder), tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["package"]


def test_accounts_are_closed(package: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(package)
    checkpoint.weights.read("norm.weight", device="cpu", dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"norm\.weight: read 2 times"):
        write_export(checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from adjudge.checkpoint import open_checkpoint, write_export

def progress(what, done, total):
    if done * 2 > total:
        os.kill(os.getpid(), signal.SIGKILL)

write_export(open_checkpoint(sys.argv[1]), sys.argv[2], progress, shard_bytes=300_000)
"""


def test_kill_leaves_no_export_and_the_next_run_cleans_up(package: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, package, target], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == [".out.partial"]
    assert any((tmp_path / ".out.partial").iterdir())
    (tmp_path / ".out.partial" / "stale").mkdir()
    (tmp_path / ".out.partial" / "stale.safetensors").write_text("of another geometry")
    write_export(open_checkpoint(package), target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert not any(entry.name.startswith("stale") for entry in target.iterdir())
    open_checkpoint(target)


def test_target_must_be_new_and_has_one_writer(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic_folder(target) as partial:
        (partial / "file").write_text("x")
        with (
            pytest.raises(CheckpointError, match="another process is writing it"),
            atomic_folder(target),
        ):
            raise AssertionError
        assert not target.exists()
    assert (target / "file").read_text() == "x"
    with pytest.raises(CheckpointError, match="exists already"), atomic_folder(target):
        raise AssertionError
    (tmp_path / "blocked").write_text("a file")
    with (
        pytest.raises(CheckpointError, match="blocked: cannot be written"),
        atomic_folder(tmp_path / "blocked" / "out"),
    ):
        raise AssertionError


def test_export_of_random_weights(package: Path, tmp_path: Path) -> None:
    """A random checkpoint becomes a file like any other, and says that it is random."""
    made = random_checkpoint("0.8b", num_layers=1, tokenizer=package / "tokenizer.json")
    config = replace(made.text_config, vocab_size=1024)
    weights = RandomWeights(config, seed=0)
    made = replace(made, text_config=config, weights=weights)
    opened = open_checkpoint(write_export(made, tmp_path / "out"))
    assert opened.card == made.card and made.card.random_weights
    name = "layers.0.mlp.down_proj.weight"
    pair = [w.read(name, device="cpu", dtype=torch.bfloat16) for w in (weights, opened.weights)]
    assert torch.equal(*pair)


MEASURED = """
import json, sys, torch
from pathlib import Path
from adjudge.checkpoint import open_checkpoint, write_export

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

checkpoint = open_checkpoint(sys.argv[1])
torch.ones(8, 8) @ torch.ones(8, 8)
before = peak()
if sys.argv[2] == "load":
    kept = {
        name: checkpoint.weights.read(name, device="cpu", dtype=torch.bfloat16)
        for name in sorted(checkpoint.weights.names())
    }
    size = sum(tensor.nbytes for tensor in kept.values())
else:
    size = 0
    def progress(what, done, total):
        global size
        size = total
    write_export(checkpoint, sys.argv[2], progress)
print(json.dumps({"size": size, "peak": peak() - before}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 MB in tensors of 8 MB and less."""
    config = small_config("bytes", hidden_size=1024, intermediate_size=4096, num_attention_heads=32)
    return write_checkpoint(tmp_path_factory.mktemp("large") / "package", config=config)


@pytest.mark.parametrize("what", ["load", "export"])
def test_peak_memory(large: Path, tmp_path: Path, what: str) -> None:
    """One copy of the weights in a load and none in an export, and a few tensors besides."""
    argument = "load" if what == "load" else str(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, large, argument], check=True, capture_output=True
    )
    found = json.loads(done.stdout)
    assert found["size"] > 100e6
    allowed = (1.25 if what == "load" else 0.5) * found["size"]
    assert found["peak"] < allowed, found


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made"
    assert main([str(folder), "--layout", "merged", "--layers", "2", "--seed", "5"]) == 0
    assert open_checkpoint(folder).text_config.num_hidden_layers == 2
    assert main([str(folder)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main([str(tmp_path / "other"), "--layers", "9"]) == 1
    assert "num_layers is 9" in capsys.readouterr().err
