"""What launches of kernels go by: the device's size, and what fits into its shared memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from adjudge.ops.refusal import Refused

Choice = TypeVar("Choice")
_found: dict[Hashable, int] = {}
"""Which choice of a kernel fits, by kernel, dtype and device."""


def num_multiprocessors(x: Tensor) -> int:
    """Of the GPU that x is on; in the interpreter those of an H200."""
    if not x.is_cuda:
        return 132
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def first_that_fits(
    kernel: Hashable, x: Tensor, choices: Sequence[Choice], run: Callable[[Choice], object]
) -> None:
    """Runs the first choice that x's device has shared memory for, and remembers it.

    kernel: names what is launched, with all that decides its size beside x's dtype. Choices are
    configurations with the same bits, the fastest first. Raises Refused if none fits.
    """
    key = (kernel, x.dtype, x.device)
    for index in range(_found.get(key, 0), len(choices)):
        try:
            run(choices[index])
        except OutOfResources as error:
            last = error
        else:
            _found[key] = index
            return
    raise Refused(f"a kernel does not fit this GPU in any of its configurations: {last}")
