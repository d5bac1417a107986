"""The result of a self-check that passed, kept on disk: one file for a device, build and model."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from adjudge.ops.linear import LinearPlan
from adjudge.self_check.check_row import CheckRow
from adjudge.sources import installed_digest, libraries

if TYPE_CHECKING:
    from adjudge.executor import Executor

LOG = logging.getLogger("adjudge.self_check")
DRIVER = Path("/proc/driver/nvidia/version")
SETTINGS = ("CUBLAS", "NVIDIA_TF32", "TORCH_", "PYTORCH_TUNABLEOP", "DISABLE_ADDMM")
PARTS = ("own", "apart")
"""What a check finds for a LinearPlan."""


def kept_file(executor: Executor) -> Path | None:
    """Where a passed check is kept: by device, driver, libraries and their settings, sources and
    geometry.

    None on a CPU.
    """
    if not executor.device.is_cuda:
        return None
    facts = [
        installed_digest(), executor.device.facts(), libraries(), _driver(), _library_settings(),
        torch.cuda.get_device_capability(executor.device.torch_device), str(executor.model.config),
        executor.states is not None,
        [list(weight.shape) for weight in executor.model.products()],
        [[list(d.a_LK.shape), list(d.b_NL.shape)] for d in executor.model.deltas()],
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "adjudge" / "self_check" / f"{name}.json"


def _driver() -> str:
    """The kernel module's own words, empty where there are none."""
    try:
        return DRIVER.read_text()
    except OSError:
        return ""


def _library_settings() -> dict[str, str]:
    """Variables by which cuBLAS or torch takes other kernels."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(SETTINGS)}


def keep(path: Path, rows: Sequence[CheckRow], used: LinearPlan) -> None:
    """Writes what passed, and how products run; a start without a cache is no failure."""
    plan = {name: sorted(getattr(used, name)) for name in PARTS}
    found = {"rows": [asdict(row) for row in rows], **plan}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps(found))
        partial.replace(path)
    except OSError as error:
        LOG.warning("the self-check's result is not kept: %s", error)


def read(path: Path, plan: LinearPlan) -> LinearPlan | None:
    """The plan with the shapes that were found when the check passed; None if nothing is kept."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text())
        own, apart = (frozenset((int(n), int(k)) for n, k in found[name]) for name in PARTS)
        return replace(plan, own=own, apart=apart)
    except (OSError, ValueError, TypeError, KeyError) as error:
        LOG.warning("%s is not what was written there, so the self-check runs: %r", path, error)
        return None
