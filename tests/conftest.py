"""Settings that every test shares: one thread per operator, markers by folder, no network."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
FOLDERS = ("unit", "cpu", "gpu", "e2e")

settings.register_profile(
    "check",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("check"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test carries the marker of the folder it lies in."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in FOLDERS:
            item.add_marker(folder)
        if folder == "gpu" and not cuda_present():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@cache
def cuda_present() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a demo checkpoint: an Open-Jev package beside its base, byte-level tokens."""
    from adjudge.checkpoint.make import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("demo") / "checkpoint")
