"""What an engine will take of a device's memory, printed and refused before it is allocated.

Legend: H hidden size, I intermediate size.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from adjudge.buckets import Bucket, ladder
from adjudge.checkpoint import TextConfig
from adjudge.checkpoint.tensor_names import text_tensors
from adjudge.checkpoint.text_config import FULL
from adjudge.config import EngineConfig
from adjudge.device import Device
from adjudge.errors import DeviceError
from adjudge.forest import CHUNK

LOG = logging.getLogger("adjudge.memory")
GIB = 1 << 30

LIBRARY_BYTES = GIB
"""CUDA context and kernels (about half of it, which torch does not count), cuBLASLt's workspaces,
the products of a readout and its label rows."""

GRAPH_LAYER_BYTES = 64 << 10
"""What the driver may keep of one layer of a graph: 4 KiB for each of sixteen kernels."""

CHECKED_ROWS = 2048
"""Rows of a pass that needs as much as the self-check at load, which does not go by
`max_batch_tokens`."""

TABLE_BYTES = 64
"""Of the integers that a pass's tables hold for one row, over all buckets; a small one has twice as
many for its empty chunks."""

ROWS_OF_A_CHUNK = 20
ROWS_OF_A_STATE = 128
"""Rows of the largest pass for each chunk and each kept state of the delta rule that it may have.
38-token candidates that fork anywhere have about 24 rows a chunk; a pass of shorter ones takes
more than its plan, and fails alone on a device that has no more."""


PARTS = ("weights", "activations", "chunks", "kept_states", "graphs", "libraries")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes. weights: the model's parameters, the deltas that are kept apart, rotary tables;
    activations: what the largest pass's rows need where they need most; chunks: its delta rule's
    scratch and states; kept_states: states of prefixes for later passes, and what a pass adds that
    reads them; graphs: a pass of the largest bucket and its results, which all captured passes
    share, and the driver's part; libraries: see LIBRARY_BYTES. budget: all that may be used.

    A pass never has its activations and its chunks at their most at once; that slack is what
    the allocator loses to block sizes and to passes of changing size.
    """

    weights: int
    activations: int
    chunks: int
    kept_states: int
    graphs: int
    libraries: int
    budget: int

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in PARTS)

    def remedies(self, config: EngineConfig, *others: str) -> str:
        """What to do so that it fits: settings that can be lowered, then the others."""
        if self.weights > self.budget:
            return f"its weights alone take {self.weights / GIB:.1f} GiB, so {' or '.join(others)}"
        names = ["max_batch_tokens", *(["prefix_cache_mib"] if config.prefix_cache_mib else [])]
        lower = " or ".join(f"{name} (now {getattr(config, name)})" for name in names)
        *first, last = [f"lower {lower}", *others]
        return f"{', '.join(first)}, or {last}"

    def lines(self) -> list[str]:
        """One line a part, for a person."""
        parts = [(name, getattr(self, name)) for name in (*PARTS, "total")]
        return [
            f"{name:12} {size / GIB:7.2f} GiB" for name, size in [*parts, ("budget", self.budget)]
        ]


def plan(
    model: TextConfig,
    config: EngineConfig,
    *,
    item_bytes: int,
    budget: int,
    delta_bytes: int = 0,
) -> MemoryPlan:
    """The plan of a pass of `max_batch_tokens` rows. item_bytes: of a weight; delta_bytes: of all
    deltas that are kept apart."""
    rows = max(config.max_batch_tokens, CHECKED_ROWS)
    num_chunks, num_states = rows // ROWS_OF_A_CHUNK, rows // ROWS_OF_A_STATE
    graphs = 0
    captured = ladder(config.max_batch_tokens, model.layer_weights) if config.graphs else ()
    if captured:
        graphs = _activations(model, captured[-1].rows, item_bytes)
        graphs += _chunks(model, captured[-1].chunks, captured[-1].chunks + 1, item_bytes)
        graphs += captured[-1].readouts * model.hidden_size * item_bytes
        graphs += sum(_of_a_graph(model, bucket) for bucket in captured)
    return MemoryPlan(
        weights=_weights(model, item_bytes) + delta_bytes,
        activations=_activations(model, rows, item_bytes),
        chunks=_chunks(model, num_chunks, num_states, item_bytes),
        kept_states=_kept_states(model, config.prefix_cache_mib << 20, rows, item_bytes),
        graphs=graphs,
        libraries=LIBRARY_BYTES,
        budget=budget,
    )


def _weights(model: TextConfig, item_bytes: int) -> int:
    """Every tensor that is loaded, and cos and sin of every position."""
    values = sum(
        prod(shape)
        for name, shape in text_tensors(model).items()
        if not name.startswith("lm_head.")
    )
    return (values + model.max_position_embeddings * model.rotary_dim) * item_bytes


def _activations(model: TextConfig, rows: int, item_bytes: int) -> int:
    """A layer's most: residual, normed row, a product that deltas are added to before the residual
    takes it (3 H), and the widest of its parts."""
    hidden, head = model.hidden_size, model.head_dim
    heads, keys = model.num_attention_heads, model.num_key_value_heads
    widest = max(
        # gate | up and their product
        3 * model.intermediate_size,
        # q | k | v | z | b | a, the rule's output, and that gated
        model.conv_channels + 3 * model.value_width + 2 * model.linear_num_value_heads,
        # queries and gates | keys | values; turned queries and keys; output
        (4 * heads + 3 * keys) * head,
    )
    return rows * ((3 * hidden + widest) * item_bytes + TABLE_BYTES)


def _chunks(model: TextConfig, num_chunks: int, num_states: int, item_bytes: int) -> int:
    """The delta rule's scratch in one layer: see ops.triton_chunks."""
    values, keys = model.linear_num_value_heads, model.linear_num_key_heads
    key_dim, value_dim = model.linear_key_head_dim, model.linear_value_head_dim
    # k and q of a key head; v, the pair products and the inverse of a value head; gate and beta of
    # a value head in FP32.
    items = CHUNK * (2 * keys * key_dim + values * (value_dim + 2 * CHUNK))
    floats = CHUNK * values * 2
    state_floats = values * key_dim * value_dim
    return num_chunks * (items * item_bytes + floats * 4) + num_states * state_floats * 4


def _kept_states(model: TextConfig, kept: int, rows: int, item_bytes: int) -> int:
    """The budget; and in one layer of a pass that reads states, its part of them once more, behind
    the rows' keys and values or their inputs of the delta rule."""
    if not kept:
        return 0
    full = sum(kind == FULL for kind in model.layer_types)
    linear = len(model.layer_types) - full
    inputs = model.conv_channels + model.value_width + 2 * model.linear_num_value_heads
    joined = max(2 * model.num_key_value_heads * model.head_dim, inputs) * rows * item_bytes
    return kept + kept // max(full, 1) + kept // max(linear, 1) + joined


def _of_a_graph(model: TextConfig, bucket: Bucket) -> int:
    """Tables and the driver's part."""
    return bucket.rows * TABLE_BYTES + model.num_hidden_layers * GRAPH_LAYER_BYTES


def check(
    model: TextConfig, config: EngineConfig, device: Device, *, delta_bytes: int = 0
) -> MemoryPlan | None:
    """Prints the plan; on a CPU there is none. Raises DeviceError if it does not fit."""
    if not device.is_cuda:
        return None
    free, budget = _left(config, device)
    made = plan(
        model,
        config,
        item_bytes=device.dtype.itemsize,
        budget=budget,
        delta_bytes=delta_bytes,
    )
    for line in made.lines():
        LOG.info(line)
    if made.total > made.budget:
        raise DeviceError(
            f"the model needs {made.total / GIB:.1f} GiB and may take {made.budget / GIB:.1f} GiB "
            f"of {device.name}, where {free / GIB:.1f} GiB are free; "
            + made.remedies(config, "raise gpu_memory_fraction", "use a larger device")
        )
    return made


def check_together(plans: Mapping[str, MemoryPlan], config: EngineConfig, device: Device) -> None:
    """Whether models that share a device fit, before the first of them is loaded: each takes what
    its plan says, all of them `gpu_memory_fraction`. Raises DeviceError with the need of each."""
    free, budget = _left(config, device)
    needed = sum(made.total for made in plans.values())
    if needed > budget:
        each = ", ".join(f"{name} {made.total / GIB:.1f}" for name, made in plans.items())
        raise DeviceError(
            f"the models need {needed / GIB:.1f} GiB ({each}) and may take {budget / GIB:.1f} GiB "
            f"of {device.name}, where {free / GIB:.1f} GiB are free; leave one out, lower "
            "max_batch_tokens, or use a larger device"
        )


def _left(config: EngineConfig, device: Device) -> tuple[int, int]:
    """Bytes that are free, and that this process may still take."""
    free, total = torch.cuda.mem_get_info(device.torch_device)
    share = int(total * config.gpu_memory_fraction)
    return free, min(free, share - torch.cuda.memory_reserved(device.torch_device))


def reserve(planned: MemoryPlan, device: Device) -> None:
    """Has the allocator take the largest pass's share from the driver in one piece.

    Passes of any size are then cut from it, where each larger one would take new memory beside
    what smaller ones left. Raises DeviceError if something else has taken that memory.
    """
    size = planned.activations + planned.chunks
    torch.cuda.empty_cache()
    try:
        torch.empty(size, dtype=torch.uint8, device=device.torch_device)
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"the largest pass needs {size / GIB:.1f} GiB of {device.name} beside the weights, and "
            "something else has taken them since the start; free the device"
        ) from error
