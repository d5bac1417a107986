"""Forests in, logits out: a model on its device, its tables copied at once, graphs where they pay.

One pass at a time, from one thread. On a GPU a pass is the replay of a graph where a bucket suits
it (see buckets.bucket_of) and it touches no kept state; any other runs eagerly. Both give the same
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adjudge.checkpoint import Checkpoint
from adjudge.device import Device, guarded, open_device
from adjudge.device_tables import to_device
from adjudge.errors import NotFinite
from adjudge.forest import CHUNK, Forest
from adjudge.heads import Heads
from adjudge.layout import Layout, layout
from adjudge.models.qwen3_5 import Qwen3_5
from adjudge.ops.attention import SLOTS
from adjudge.ops.linear import LinearPlan
from adjudge.state import Carry, States

if TYPE_CHECKING:
    from adjudge.checkpoint import AdapterUse
    from adjudge.config import EngineConfig
    from adjudge.engine_door import Logits
    from adjudge.families import Readout
    from adjudge.graphs import Graphs
    from adjudge.progress import Progress
    from adjudge.reuse import Reuse


@dataclass(slots=True)
class Counters:
    """Passes since start, and rows: unique, and computed with padding."""

    replays: int = 0
    eager: int = 0
    rows: int = 0
    padded_rows: int = 0


@dataclass(slots=True)
class Executor:
    """A model and its heads on a device.

    height: most queries of an attention tile, on a GPU all that a chunk has; graphs: captured
    passes, on a GPU; adapter: what became of the checkpoint's adapter; states: kept for later
    passes, if there is room for any; findings: what the self-check said at load, ready to be shown.
    """

    model: Qwen3_5
    heads: Heads
    device: Device
    height: int
    config: EngineConfig
    adapter: AdapterUse = "none"
    graphs: Graphs | None = None
    states: States | None = None
    findings: dict[str, Any] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, config: EngineConfig, *, progress: Progress | None = None
    ) -> Executor:
        """Streams the weights, proves exactness, captures graphs.

        Raises CheckpointError, ConfigError, or DeviceError for a device that does not fit it.
        """
        from adjudge import graphs, memory, self_check

        device = open_device(config)
        planned = memory.check(
            checkpoint.text_config, config, device, delta_bytes=checkpoint.weights.delta_bytes
        )
        with guarded(device):
            model = Qwen3_5.load(
                checkpoint.text_config,
                checkpoint.weights,
                device=device.torch_device,
                dtype=device.dtype,
                progress=progress,
            )
            heads = Heads.of(checkpoint, device=device.torch_device, dtype=device.dtype)
            if planned is not None:
                memory.reserve(planned, device)
            height = CHUNK if device.is_cuda else SLOTS
            made = cls(model, heads, device, height, config, checkpoint.weights.adapter_use)
            if config.prefix_cache_mib:
                made.states = States(
                    checkpoint.text_config,
                    config.prefix_cache_mib << 20,
                    dtype=device.dtype,
                    device=device.torch_device,
                )
            if config.self_check:
                made.findings = self_check.at_load(made, config, progress=progress)
            if config.graphs and device.is_cuda:
                made.graphs = graphs.capture(made, config, progress=progress)
        return made

    def use(self, linear_plan: LinearPlan) -> None:
        """Runs products by this plan from now on; graphs of another plan are captured again."""
        from adjudge import graphs

        if linear_plan == self.model.linear_plan:
            return
        self.model = replace(self.model, linear_plan=linear_plan)
        if self.graphs is not None:
            self.graphs = None
            self.graphs = graphs.capture(self, self.config)

    def prepare(self, forest: Forest, *, eager: bool = False) -> Layout:
        """The forest's tables, padded where a graph waits for them. Touches no device."""
        bucket = None if eager or self.graphs is None else self.graphs.bucket(forest)
        return layout(forest, height=self.height, bucket=bucket)

    def run(
        self,
        plan: Layout,
        readouts: Sequence[Readout],
        rows: Sequence[int],
        reuse: Reuse | None = None,
    ) -> Sequence[Logits]:
        """Logits of each readout, read at its readout row.

        reuse: the states that the pass reads and keeps, as the pool has them now. Raises
        DeviceError, and NotFinite: a prompt that makes such logits may have spoilt others of its
        pass, so that all of them are to be run again apart.
        """
        carried: AbstractContextManager[Carry | None] = nullcontext()
        if self.states is not None and reuse is not None and reuse.touches_states:
            carried = self.states.carried(reuse)
        with guarded(self.device), carried as carry:
            logits = self.heads.logits(self.hidden(plan, carry), readouts, rows)
            if logits and not np.isfinite(np.concatenate(logits)).all():
                raise NotFinite
        return logits

    def hidden(self, plan: Layout, carry: Carry | None = None) -> Tensor:
        """[Q, H] final-norm hidden states of the readout rows, in the storage dtype."""
        self.counters.rows += plan.num_rows
        self.counters.padded_rows += plan.padded_rows
        if self.graphs is not None and plan.bucket is not None:
            self.counters.replays += 1
            return self.graphs.replay(plan)
        self.counters.eager += 1
        return self.model.forward(to_device(plan, self.device.torch_device), carry)

    def health(self) -> dict[str, Any]:
        """Device, dtype, self-check and counters. Raises DeviceError if the device is unsound."""
        self.device.check_sound()
        counters, where = self.counters, self.device.torch_device
        memory = torch.cuda.max_memory_reserved(where) >> 20 if self.device.is_cuda else None
        return {
            **self.device.facts(),
            "adapter": self.adapter,
            **({} if memory is None else {"peak_memory_mib": memory}),
            **self.findings,
            "captures": 0 if self.graphs is None else self.graphs.num_captures,
            "capture_failures": 0 if self.graphs is None else self.graphs.num_failures,
            "replays": counters.replays,
            "eager_passes": counters.eager,
            **({} if self.states is None else {"prefix_cache": self.states.facts()}),
            "padding_share": round(
                (counters.padded_rows - counters.rows) / max(counters.padded_rows, 1), 4
            ),
        }

    def close(self) -> None:
        """Drops weights, graphs and kept states, and gives cached device memory back."""
        if self.device.fault is not None:
            return
        self.device.fault = "the engine is closed; load it again"
        self.graphs = None
        if self.states is not None:
            self.states.clear()
        del self.model, self.heads
        if self.device.is_cuda:
            torch.cuda.empty_cache()
