"""What a kernel does not take, and the error that says so."""

from __future__ import annotations

NARROWEST = 16
"""Least extent of a tensor-core product's operand."""


class Refused(ValueError):
    """A kernel cannot run what it is given on the device that it is on; says what and why.

    No pass of the same model gets further: `device.guarded` makes it a DeviceError.
    """


def check_sizes(**sizes: int) -> None:
    """Raises Refused for a size, by name, that is no power of two of at least NARROWEST."""
    for name, size in sizes.items():
        if size < NARROWEST or size & (size - 1):
            raise Refused(f"{name} is {size}; kernels take powers of two from {NARROWEST} on")


def check_groups(**heads: int) -> None:
    """heads: many by name, then few. Raises Refused unless each of the few has as many of them."""
    (name, many), (of, few) = heads.items()
    if many % few:
        raise Refused(f"{name} is {many}; kernels take multiples of {of}, which is {few}")
