"""The device an engine runs on: which one, in which dtype, and whether it is still sound."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from adjudge.errors import ConfigError, DeviceError
from adjudge.ops.refusal import Refused

if TYPE_CHECKING:
    from adjudge.config import EngineConfig


@dataclass(slots=True)
class Device:
    """dtype: of weights and activations; fault: why the device is unsound, if it is."""

    torch_device: torch.device
    dtype: torch.dtype
    fault: str | None = None

    @property
    def is_cuda(self) -> bool:
        return self.torch_device.type == "cuda"

    @property
    def name(self) -> str:
        if self.is_cuda:
            return torch.cuda.get_device_name(self.torch_device)
        return platform.processor() or platform.machine()

    def facts(self) -> dict[str, Any]:
        """What a reader of health or of a result wants to know of it."""
        return {
            "device": self.name,
            "dtype": str(self.dtype).removeprefix("torch."),
            "torch": str(torch.__version__),
            **({"cuda": torch.version.cuda} if self.is_cuda else {}),
        }

    def check_sound(self) -> None:
        """Raises DeviceError once a pass has broken the device."""
        if self.fault is not None:
            raise DeviceError(self.fault)


def open_device(config: EngineConfig) -> Device:
    """The device of a config, set up for products whose rows do not depend on their number.

    Raises ConfigError: a CUDA device is asked for and there is none; nothing falls back silently.
    """
    found = torch.cuda.is_available()
    if config.device == "cuda" and not found:
        raise ConfigError(
            "device is cuda, and torch sees no CUDA device; install a CUDA build of torch and its "
            "driver, or use --device cpu"
        )
    kind = config.device if config.device != "auto" else ("cuda" if found else "cpu")
    auto = "float32" if kind == "cpu" else "bfloat16"
    dtype: torch.dtype = getattr(torch, auto if config.dtype == "auto" else config.dtype)
    if kind == "cpu":
        return Device(torch.device("cpu"), dtype)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_tf32 = False
    # The second value is split-K, with which a row's bits depend on the number of rows.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    return Device(torch.device("cuda", torch.cuda.current_device()), dtype)


@contextmanager
def guarded(device: Device) -> Iterator[None]:
    """Turns a CUDA failure that leaves the context unusable into DeviceError, and remembers it; and
    a model that the device's kernels refuse into DeviceError.

    Out of memory leaves it usable: that error passes through and fails its own batch only.
    """
    device.check_sound()
    try:
        yield
    except torch.AcceleratorError as error:
        device.fault = f"the device failed: {str(error).splitlines()[0]}"
        raise DeviceError(device.fault) from error
    except Refused as error:
        raise DeviceError(f"{error}; use another device, or --device cpu") from error
