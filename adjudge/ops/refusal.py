"""The error of a kernel that does not take an input."""

from __future__ import annotations


class Refused(ValueError):
    """A kernel cannot run what it is given on the device that it is on; says what and why.

    No pass of the same model gets further: `device.guarded` makes it a DeviceError.
    """
