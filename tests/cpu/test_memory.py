"""The memory plan against what is really allocated, and against what was measured on a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adjudge import memory
from adjudge.buckets import ladder
from adjudge.checkpoint import GEOMETRIES
from adjudge.checkpoint.tensor_names import text_tensors
from adjudge.checkpoint.text_config import TextConfig
from adjudge.config import EngineConfig
from adjudge.device import Device
from adjudge.device_tables import to_device
from adjudge.errors import DeviceError
from adjudge.forest import CHUNK, plan
from adjudge.layout import layout
from adjudge.models import projection, qwen3_5
from adjudge.models.qwen3_5 import Qwen3_5
from tests.small_models import CPU, LIKE_9B, LIKE_27B, ours

GIB = 1 << 30
DEFAULT = EngineConfig()


def planned(model: TextConfig, item_bytes: int = 2, **settings: Any) -> memory.MemoryPlan:
    return memory.plan(model, EngineConfig(**settings), item_bytes=item_bytes, budget=0)


def tensors_of(part: object) -> list[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        return [part]
    if isinstance(part, tuple):
        return [tensor for piece in part for tensor in tensors_of(piece)]
    if hasattr(part, "__slots__"):
        return [t for name in part.__slots__ for t in tensors_of(getattr(part, name))]
    return []


@pytest.mark.parametrize("config", [LIKE_9B, LIKE_27B], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_are_what_a_loaded_model_holds(config: TextConfig, dtype: torch.dtype) -> None:
    model: Qwen3_5 = ours(config, dtype)
    held = sum(tensor.nbytes for tensor in tensors_of(model) if tensor.is_floating_point())
    assert planned(config, dtype.itemsize).weights == held


class Live:
    """Rows of BF16 as a GPU's ops make them, and how many bytes of them live, at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def rows(self, *shape: int) -> torch.Tensor:
        made = np.empty(shape, np.float16)
        self.now += made.nbytes
        self.most = max(self.most, self.now)
        weakref.finalize(made, self.freed, made.nbytes)
        return torch.from_numpy(made)

    def freed(self, num_bytes: int) -> None:
        self.now -= num_bytes


class Shapes:
    """Weights that have a shape and nothing else."""

    def __init__(self, config: TextConfig) -> None:
        self.shapes = text_tensors(config)

    def read(self, name: str, **_: Any) -> torch.Tensor:
        return torch.empty(self.shapes[name], device="meta")

    def lora(self, name: str) -> None:
        return None

    def finish(self, consumed: set[str], ignored: Mapping[str, str]) -> None:
        pass


@pytest.mark.parametrize("geometry", ["0.8b", "2b", "4b", "9b", "27b"])
def test_activations_are_what_a_pass_holds(geometry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops make their results as a GPU's do; the delta rule's scratch is planned apart."""
    config, live, num_rows = GEOMETRIES[geometry].with_layers(8), Live(), 16
    heads = (config.linear_num_value_heads, config.linear_value_head_dim)

    def like(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return live.rows(*x.shape)

    def rotated(
        x: torch.Tensor, *_: Any, num_heads: int, num_kv_heads: int, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        counts = (num_heads, num_kv_heads)
        q, k = (live.rows(len(x), count, config.head_dim) for count in counts)
        return q, k

    ops: dict[str, Callable[..., Any]] = {
        "rms_norm": like,
        "gated_rms_norm": like,
        "tree_attention": like,
        "qk_norm_rope": rotated,
        "gated_delta": lambda x, *_, **__: live.rows(len(x), *heads),
        "silu_mul": lambda x: live.rows(len(x), x.shape[1] // 2),
        "functional": SimpleNamespace(embedding=lambda ids, V: live.rows(len(ids), V.shape[1])),
    }
    model = Qwen3_5.load(
        config, cast("Any", Shapes(config)), device=torch.device("meta"), dtype=torch.bfloat16
    )
    for name, op in ops.items():
        monkeypatch.setattr(qwen3_5, name, op)
    monkeypatch.setattr(projection, "linear", lambda x, w, plan: live.rows(len(x), len(w)))
    monkeypatch.setattr(projection, "add_linear", lambda y, x, w, plan: None)
    prompt = np.arange(num_rows, dtype=np.int32)
    model.forward(to_device(layout(plan([prompt]), height=CHUNK), CPU))
    most = memory._activations(config, num_rows, 2) - num_rows * memory.TABLE_BYTES
    assert 0.75 * most < live.most <= most


class Allocated(TorchDispatchMode):
    """Counts the bytes that torch.empty gives."""

    total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.empty:
            self.total += made.nbytes
        return made


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
def test_chunks_are_what_the_kernels_take() -> None:
    pytest.importorskip("triton")
    from adjudge.ops import triton_delta

    config = LIKE_27B
    H, V = config.linear_num_key_heads, config.linear_num_value_heads
    K, D = config.linear_key_head_dim, config.linear_value_head_dim
    tables = to_device(layout(plan([np.arange(100, dtype=np.int32)]), height=32), CPU)
    x = torch.randn(100, config.conv_channels + config.value_width + 2 * V)
    state = torch.empty(tables.num_states, V, K, D)
    with Allocated() as seen:
        triton_delta.gated_delta(
            x, torch.randn(config.conv_channels, 4), torch.randn(V), torch.randn(V),
            tables.ancestors_R3, tables.chunk_rows_CT, tables.chunk_first_C, tables.chunk_len_C,
            tables.chunk_state_out_C, tables.run_first_N, tables.run_count_N,
            tables.run_state_in_N, tables.level_start_L, state, level_runs=tables.level_runs,
            num_key_heads=H, num_value_heads=V, key_dim=K, value_dim=D,
        )  # fmt: skip
    assert memory._chunks(config, 2, 0, 4) == seen.total
    assert memory._chunks(config, 0, tables.num_states, 4) == state.nbytes


@pytest.mark.parametrize(
    ("geometry", "measured_gib", "most_gib"), [("9b", 18.99, 20.0), ("27b", 53.69, 56.0)]
)
def test_released_sizes(geometry: str, measured_gib: float, most_gib: float) -> None:
    """docs/gpu.md: what the allocator had of the device after the public workload."""
    made = planned(GEOMETRIES[geometry])
    assert measured_gib * GIB < made.total < (measured_gib + 1.5) * GIB
    assert made.total < most_gib * GIB


def test_parts_grow_with_what_they_are_for() -> None:
    config = GEOMETRIES["2b"]
    small, large = (planned(config, max_batch_tokens=rows) for rows in (4096, 8192))
    assert large.activations == 2 * small.activations
    assert large.chunks > small.chunks and large.weights == small.weights
    assert planned(config, max_batch_tokens=64).activations == small.activations // 2
    assert planned(config, graphs=False).graphs == 0
    assert planned(config, max_batch_tokens=64).graphs < planned(config).graphs
    buckets = ladder(16_384, config.layer_weights)
    captured = memory._activations(config, buckets[-1].rows, 2)
    captured += memory._chunks(config, buckets[-1].chunks, buckets[-1].chunks + 1, 2)
    apart = sum(memory._of_a_graph(config, bucket) for bucket in buckets)
    results = buckets[-1].readouts * config.hidden_size * 2
    assert planned(config).graphs == captured + results + apart
    shown = large.lines()
    assert [line.split()[0] for line in shown] == [*memory.PARTS, "total", "budget"]
    keeping = planned(config, prefix_cache_mib=1024)
    assert small.kept_states == 0 and GIB < keeping.kept_states < 2 * GIB
    assert keeping.total - planned(config).total == keeping.kept_states


@pytest.mark.parametrize(
    ("free", "reserved", "fits"), [(30, 0, True), (19, 0, False), (30, 50, True), (80, 60, False)]
)
def test_a_model_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, free: int, reserved: int, fits: bool
) -> None:
    """80 GiB, of which this process may take 72: what it has already, and what others have."""
    monkeypatch.setattr(Device, "is_cuda", property(lambda self: True))
    monkeypatch.setattr(Device, "name", property(lambda self: "a GPU"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved * GIB)
    device = Device(CPU, torch.bfloat16)
    if fits:
        made = memory.check(GEOMETRIES["9b"], DEFAULT, device)
        assert made is not None and made.total == planned(GEOMETRIES["9b"]).total
        return
    message = rf"needs \d+\.\d GiB and may take \d+\.\d GiB of a GPU, where {free}\.0 GiB are free"
    with pytest.raises(DeviceError, match=message):
        memory.check(GEOMETRIES["9b"], DEFAULT, device)


def test_remedies_are_those_that_can_help() -> None:
    model, others = GEOMETRIES["9b"], ("raise the fraction", "use another device")
    for budget, cache, expected in (
        (
            19 * GIB,
            0,
            "lower max_batch_tokens (now 16384), raise the fraction, or use another device",
        ),
        (19 * GIB, 8, "lower max_batch_tokens (now 16384) or prefix_cache_mib (now 8), raise"),
        (
            10 * GIB,
            0,
            "its weights alone take 14.8 GiB, so raise the fraction or use another device",
        ),
    ):
        config = EngineConfig(prefix_cache_mib=cache)
        made = memory.plan(model, config, item_bytes=2, budget=budget)
        assert made.remedies(config, *others).startswith(expected)


def test_memory_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def empty(size: int, **kind: Any) -> None:
        asked.append(size)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", empty)
    made = planned(GEOMETRIES["9b"])
    with pytest.raises(DeviceError, match="something else has taken them"):
        memory.reserve(made, Device(CPU, torch.bfloat16))
    assert asked == [made.activations + made.chunks]
