"""What a device could do at best, and what a token costs: the ground of floors and utilisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adjudge.proof.evidence import Machine

if TYPE_CHECKING:
    from adjudge.checkpoint import TextConfig


@dataclass(frozen=True, slots=True)
class Peak:
    """Measured on the device with large products and copies: FLOP/s in BF16, bytes/s of memory."""

    flops: float
    bytes_per_s: float


PEAKS = {"NVIDIA H200": Peak(flops=790e12, bytes_per_s=4.3e12)}


def peak_of(machine: Machine) -> Peak | None:
    """The peak of the machine's one kind of device, None where nobody measured it."""
    names = {device.name for device in machine.devices}
    return PEAKS.get(names.pop()) if len(names) == 1 else None


def floor_ms(config: TextConfig, num_tokens: int, peak: Peak, bytes_per_weight: int = 2) -> float:
    """Least milliseconds of one pass: weights streamed once, or all products at the peak."""
    weights = config.product_weights
    streaming = weights * bytes_per_weight / peak.bytes_per_s
    return max(streaming, 2 * weights * num_tokens / peak.flops) * 1e3
