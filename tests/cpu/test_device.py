"""The device is the one asked for, and one that failed stays failed: nothing falls back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adjudge import Engine, EngineConfig
from adjudge.device import Device, guarded, open_device
from adjudge.errors import ConfigError, DeviceError
from adjudge.models.qwen3_5 import Qwen3_5
from adjudge.ops.refusal import Refused

REQUEST = {"state": "It rains.", "questions": {"q": {"type": "noul", "instructions": "Wet?"}}}


def test_a_gpu_that_is_asked_for_and_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no CUDA device"):
        open_device(EngineConfig(device="cuda"))
    assert open_device(EngineConfig(device="auto")).torch_device.type == "cpu"


def test_a_failed_device_is_remembered_and_memory_that_ran_out_is_not() -> None:
    device = Device(torch.device("cpu"), torch.float32)
    with pytest.raises(torch.OutOfMemoryError), guarded(device):
        raise torch.OutOfMemoryError("out of memory")
    device.check_sound()
    with pytest.raises(DeviceError, match="an illegal address"), guarded(device):
        raise torch.AcceleratorError("an illegal address\nand much more")
    with pytest.raises(DeviceError, match="an illegal address"), guarded(device):
        pytest.fail("a failed device ran something")


def test_what_a_kernel_refuses_is_a_device_error_with_a_remedy() -> None:
    device = Device(torch.device("cpu"), torch.float32)
    with pytest.raises(DeviceError, match="does not fit; use another device"), guarded(device):
        raise Refused("it does not fit")
    device.check_sound()


def test_a_device_that_fails_in_a_pass_answers_nothing_more(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.load(str(demo), EngineConfig(device="cpu"))
    assert engine.decide(REQUEST)["answers"]["q"]["type"] == "noul"
    forward = Qwen3_5.forward

    def broken(*arguments: Any) -> Any:
        raise torch.AcceleratorError("an illegal address")

    monkeypatch.setattr(Qwen3_5, "forward", broken)
    with pytest.raises(DeviceError, match="an illegal address"):
        engine.decide(REQUEST)
    monkeypatch.setattr(Qwen3_5, "forward", forward)
    for call in (lambda: engine.decide(REQUEST), engine.health):
        with pytest.raises(DeviceError, match="an illegal address"):
            call()
