"""Where the time of a pass goes, by op: what the profiler saw on the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from adjudge.proof.result import OpTime

PRODUCT_WORDS = ("gemm", "nvjet", "cutlass", "xmma", "splitk", "aten::mm", "aten::addmm")
"""What the names of kernels that multiply matrices have in them."""
PRODUCTS = "matrix products"
OTHERS = "all others"
MOST_OPS = 16


def op_times(work: Callable[[], object], device: torch.device) -> list[OpTime]:
    """Ops of one call of `work`, longest first. On a GPU its kernels, else its operators."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as found:
        work()
        if cuda:
            torch.cuda.synchronize(device)
    totals: dict[str, tuple[int, float]] = {}
    for event in found.key_averages():
        spent_us = event.self_device_time_total if cuda else event.self_cpu_time_total
        if spent_us <= 0 or (cuda and not str(event.device_type).endswith("CUDA")):
            continue
        name = PRODUCTS if any(word in event.key.lower() for word in PRODUCT_WORDS) else event.key
        calls, us = totals.get(name, (0, 0.0))
        totals[name] = (calls + event.count, us + spent_us)
    ops = [OpTime(name, calls, us / 1e3) for name, (calls, us) in totals.items()]
    ops.sort(key=lambda op: -op.ms)
    rest = ops[MOST_OPS:]
    if rest:
        calls, ms = sum(op.calls for op in rest), sum(op.ms for op in rest)
        ops[MOST_OPS:] = [OpTime(f"{OTHERS} ({len(rest)} names)", calls, ms)]
    return ops
