"""What an engine will take of a device's memory, printed and refused before it is allocated."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from adjudge.checkpoint import TextConfig
from adjudge.checkpoint.text_config import FULL
from adjudge.config import EngineConfig
from adjudge.device import Device
from adjudge.errors import DeviceError
from adjudge.forest import CHUNK
from adjudge.layout import ladder

LOG = logging.getLogger("adjudge.memory")
GIB = 1 << 30

LIBRARY_BYTES = GIB
"""CUDA context, kernels, cuBLASLt's workspace, and what the allocator loses to its block sizes."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes: the model's weights; the largest pass's activations and keys; its delta-rule chunks
    and states; the graphs' tables; and what the libraries take. budget: all that may be used."""

    weights: int
    activations: int
    chunks: int
    graphs: int
    libraries: int
    budget: int

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.chunks + self.graphs + self.libraries

    def lines(self) -> list[str]:
        """One line a part, for a person."""
        parts = [
            (name, getattr(self, name))
            for name in ("weights", "activations", "chunks", "graphs", "libraries", "total")
        ]
        return [
            f"{name:12} {size / GIB:7.2f} GiB" for name, size in [*parts, ("budget", self.budget)]
        ]


def plan(model: TextConfig, config: EngineConfig, *, item_bytes: int, budget: int) -> MemoryPlan:
    """The plan of a pass of `max_batch_tokens` rows. item_bytes: of a weight."""
    rows = config.max_batch_tokens
    hidden, inner = model.hidden_size, model.intermediate_size
    heads, keys = model.num_attention_heads, model.num_key_value_heads
    value_heads, key_heads = model.linear_num_value_heads, model.linear_num_key_heads
    key_dim, value_dim = model.linear_key_head_dim, model.linear_value_head_dim
    in_proj = model.conv_channels + model.value_width + 2 * value_heads
    qkv = (2 * heads + 2 * keys) * model.head_dim
    mlp = 3 * hidden * inner
    delta = hidden * (in_proj + model.value_width) + 5 * model.conv_channels
    attention = hidden * (qkv + heads * model.head_dim)
    full = sum(kind == FULL for kind in model.layer_types)
    layers = len(model.layer_types)
    weights = layers * mlp + (layers - full) * delta + full * attention
    weights += model.vocab_size * hidden
    # Residual, normed row and projection live together with the widest intermediate of a layer.
    widest = max(3 * inner, in_proj + 2 * model.value_width, qkv + 2 * heads * model.head_dim)
    activations = rows * (4 * hidden + widest) * item_bytes
    num_chunks = rows // CHUNK + rows // 40
    per_chunk = CHUNK * (2 * key_heads * key_dim + value_heads * (value_dim + 2 * CHUNK))
    per_chunk = per_chunk * item_bytes + value_heads * CHUNK * (2 + 16) * 4
    states = min(num_chunks, 64) * value_heads * key_dim * value_dim * 4
    buckets = ladder(rows) if config.graphs else ()
    graphs = sum(bucket.rows * 64 + 2 * bucket.chunks * hidden for bucket in buckets)
    return MemoryPlan(
        weights=weights * item_bytes,
        activations=activations,
        chunks=num_chunks * per_chunk + states,
        graphs=graphs + (2 << 30 if buckets else 0) // 2,
        libraries=LIBRARY_BYTES,
        budget=budget,
    )


def check(model: TextConfig, config: EngineConfig, device: Device) -> MemoryPlan | None:
    """Prints the plan; on a CPU there is none. Raises DeviceError if it does not fit."""
    if not device.is_cuda:
        return None
    _, total = torch.cuda.mem_get_info(device.torch_device)
    made = plan(
        model,
        config,
        item_bytes=device.dtype.itemsize,
        budget=int(total * config.gpu_memory_fraction),
    )
    for line in made.lines():
        LOG.info(line)
    if made.total > made.budget:
        raise DeviceError(
            f"the model needs {made.total / GIB:.1f} GiB and may take {made.budget / GIB:.1f} GiB "
            f"of {device.name}; lower max_batch_tokens (now {config.max_batch_tokens}), raise "
            "gpu_memory_fraction, or use a larger device"
        )
    return made
