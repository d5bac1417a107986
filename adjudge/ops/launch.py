"""What launches of kernels go by."""

from __future__ import annotations

import torch
from torch import Tensor


def num_multiprocessors(x: Tensor) -> int:
    """Of the GPU that x is on; in the interpreter those of an H200."""
    if not x.is_cuda:
        return 132
    return torch.cuda.get_device_properties(x.device).multi_processor_count
