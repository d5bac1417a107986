"""The matrix products of a pass and nothing else: what the rest of the pass is measured against."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from adjudge.models.projection import Projection
from adjudge.models.qwen3_5 import Attention, Qwen3_5
from adjudge.ops.linear import FEWEST_ROWS

Product = tuple[Projection, int]
"""A projection and the rows that it runs over."""


def products_of(model: Qwen3_5, num_rows: int, num_readouts: int) -> list[Product]:
    """The products of one pass in their order. Where Qwen3_5.forward adds one to the residual, the
    product alone."""
    found: list[Product] = []
    num_readouts = max(num_readouts, FEWEST_ROWS)
    for layer in model.layers:
        last = layer is model.layers[-1]
        inner = num_readouts if last else num_rows
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            if last:
                queries, keys = mixer.qkv_proj.split(model.query_width)
                found += [(queries, num_readouts), (keys, num_rows)]
            else:
                found.append((mixer.qkv_proj, num_rows))
            found.append((mixer.o_proj, inner))
        else:
            found += [(mixer.in_proj, num_rows), (mixer.out_proj, inner)]
        found += [(layer.gate_up, inner), (layer.down, inner)]
    return found


def runner(model: Qwen3_5, products: list[Product], *, graph: bool) -> Callable[[], object]:
    """Runs the products on random rows of size 1; graph: captured once and replayed."""
    inputs: dict[tuple[int, int], Tensor] = {}
    for projection, rows in products:
        weight = projection.weight_NK
        shape = (rows, weight.shape[1])
        if shape not in inputs:
            inputs[shape] = torch.randn(shape, device=weight.device, dtype=weight.dtype)

    @torch.inference_mode()
    def run() -> None:
        for projection, rows in products:
            projection(inputs[rows, projection.weight_NK.shape[1]], model.linear_plan)

    if not graph:
        return run
    run()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        run()
    return captured.replay
