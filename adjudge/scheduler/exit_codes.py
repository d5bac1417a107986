"""What a supervisor learns from the exit code of `adjudge serve`."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Restart on 3 and 4, mend the command line on 2, read the log on 1."""

    CLEAN = 0
    """Asked to stop; every accepted request was answered."""
    FAULT = 1
    """A fault of ours while starting."""
    REFUSED = 2
    """A setting, the model folder or the address cannot be used."""
    DEVICE_UNSOUND = 3
    """The device cannot compute exactly, or stopped being sound."""
    ENGINE_LOST = 4
    """A pass did not return within the watchdog's limit, or the worker ended."""
    DRAIN_CUT = 5
    """Asked to stop; some accepted requests were not done within the drain budget."""
