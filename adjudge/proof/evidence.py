"""What a result stands on: the build, the command, the machine, the libraries, the gates."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import adjudge
from adjudge.sources import digest_of, installed_digest, libraries

COMMITS = 200
"""How far back a build is looked for."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A correctness check: what it says, whether it held, and what was seen."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    memory_mib: int
    driver: str
    compute_capability: str


@dataclass(frozen=True, slots=True)
class Machine:
    """memory_mib: of the host; devices: its accelerators, none on a CPU machine."""

    cpu: str
    num_cpus: int
    memory_mib: int
    system: str
    python: str
    devices: tuple[Device, ...] = ()

    @property
    def name(self) -> str:
        """One line that names the machine's class, not the machine."""
        if not self.devices:
            return f"{self.num_cpus} × {self.cpu}"
        names = [device.name for device in self.devices]
        return f"{len(names)} × {names[0]}" if len(names) > 1 else names[0]


@dataclass(frozen=True, slots=True)
class Build:
    """commit, dirty: None outside a repository; source_sha256: over the package's Python files,
    so that a build is known wherever it was copied to."""

    version: str
    commit: str | None
    dirty: bool | None
    source_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """model: geometry, or hashes of the checkpoint's files; server: what a measured server says
    of itself (its /version, /v1/models and /health)."""

    build: Build
    command: str
    time: str
    machine: Machine
    libraries: Mapping[str, str]
    gates: tuple[Gate, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)


def gather(
    *,
    gates: Sequence[Gate],
    model: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
) -> Evidence:
    """The evidence of this process, now."""
    return Evidence(
        build=build(),
        command=shlex.join(["adjudge", *sys.argv[1:]]),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        libraries=libraries(),
        gates=tuple(gates),
        model=model or {},
        server=server or {},
    )


@cache
def build() -> Build:
    package = Path(adjudge.__file__).parent
    commit = _git(package, "rev-parse", "HEAD")
    changes = None if commit is None else _git(package, "status", "--porcelain", "--", ".")
    return Build(
        version=adjudge.__version__,
        commit=commit,
        dirty=None if changes is None else bool(changes),
        source_sha256=installed_digest(),
    )


def _git(package: Path, *words: str) -> str | None:
    """Output of git in the repository that tracks the package, None if there is none."""
    git = shutil.which("git")
    if git is None or not (package.parent / ".git").exists():
        return None
    done = subprocess.run(  # noqa: S603
        [git, "-C", str(package), *words], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def commit_of(source_sha256: str) -> str | None:
    """The latest of the last COMMITS commits whose package has this digest."""
    package = Path(adjudge.__file__).parent
    for commit in (_git(package, "rev-list", f"-n{COMMITS}", "HEAD") or "").split():
        if _committed_digest(package, commit) == source_sha256:
            return commit
    return None


def _committed_digest(package: Path, commit: str) -> str:
    archive = subprocess.run(  # noqa: S603
        [shutil.which("git") or "git", "-C", str(package), "archive", commit, "."],
        capture_output=True,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        sources = {
            member.name.removeprefix("./"): found.read()
            for member in files.getmembers()
            if member.name.endswith(".py") and (found := files.extractfile(member)) is not None
        }
    return digest_of(sources)


@cache
def machine() -> Machine:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=_cpu_name(),
        num_cpus=os.cpu_count() or 1,
        memory_mib=pages >> 20,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        devices=_devices(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _devices() -> tuple[Device, ...]:
    """CUDA devices as the driver lists them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    fields = "name,memory.total,driver_version,compute_cap"
    done = subprocess.run(  # noqa: S603
        [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return ()
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return tuple(
        Device(name, int(memory), driver, capability) for name, memory, driver, capability in rows
    )


def folder_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a checkpoint folder, by its path in the folder."""
    hashes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
        hashes[path.relative_to(folder).as_posix()] = digest.hexdigest()
    return hashes
