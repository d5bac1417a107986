"""Models that share a device: each takes what it needs, and all of it is refused beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adjudge import EngineConfig, memory
from adjudge.checkpoint import open_checkpoint
from adjudge.checkpoint.made_base import small_config
from adjudge.checkpoint.make import write_checkpoint
from adjudge.commands.load import load_engines
from adjudge.config import ServiceConfig
from adjudge.device import Device
from adjudge.dry_run import examine
from adjudge.engine import check_memory
from adjudge.errors import ConfigError, DeviceError

GIB = 1 << 30


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("memory")
    large = small_config("bytes", hidden_size=1024, intermediate_size=4096, num_attention_heads=32)
    return {
        "small": write_checkpoint(place / "small", family="jemm"),
        "large": write_checkpoint(place / "large", config=large),
    }


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A GPU that only tells its memory, in bytes: free, total, and reserved by this process."""
    told = {"free": 80 * GIB, "total": 80 * GIB, "reserved": 0}
    found = Device(torch.device("cuda", 0), torch.bfloat16)
    monkeypatch.setattr("adjudge.engine.open_device", lambda config: found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (told["free"], told["total"]))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: told["reserved"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    return told


def planned(folder: Path, config: EngineConfig, **mode: Any) -> memory.MemoryPlan:
    checkpoint = open_checkpoint(folder, **mode)
    delta_bytes = checkpoint.weights.delta_bytes
    return memory.plan(
        checkpoint.text_config, config, item_bytes=2, budget=0, delta_bytes=delta_bytes
    )


def test_deltas_kept_apart_are_counted(folders: dict[str, Path]) -> None:
    merged, apart = (
        planned(folders["small"], EngineConfig(), adapter=mode) for mode in ("merged", "unmerged")
    )
    kept = open_checkpoint(folders["small"], adapter="unmerged").weights.delta_bytes
    assert apart.weights - merged.weights == kept > 0


def test_unequal_models_take_what_they_need_of_the_whole_share(
    folders: dict[str, Path], device: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just enough for both, where halves would be too little for the larger; then a byte less."""
    configs = {
        name: EngineConfig(model=str(folder), max_batch_tokens=65_536, gpu_memory_fraction=1.0)
        for name, folder in folders.items()
    }
    needs = {name: planned(folders[name], config).total for name, config in configs.items()}
    assert needs["large"] > 0.6 * sum(needs.values())
    device |= {"total": sum(needs.values())}
    check_memory(configs)
    device |= {"total": sum(needs.values()) - 1}
    loaded: list[str | None] = []
    monkeypatch.setattr(
        "adjudge.commands.load.load_engine", lambda config: loaded.append(config.model)
    )
    with pytest.raises(DeviceError, match=r"need \d+\.\d GiB \(small \d+\.\d, large \d+\.\d\) and"):
        load_engines(configs)
    assert loaded == []
    with pytest.raises(ConfigError, match="leave one out"):
        examine(configs, ServiceConfig(port=0))
    device |= {"total": 80 * GIB, "free": sum(needs.values()) - 1}
    with pytest.raises(DeviceError, match="are free; leave one out"):
        check_memory(configs)
    check_memory({"large": configs["large"]})


def test_a_cpu_is_not_asked(folders: dict[str, Path]) -> None:
    configs = {name: EngineConfig(model=str(path), device="cpu") for name, path in folders.items()}
    check_memory(configs)
