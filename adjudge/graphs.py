"""CUDA graphs: one captured pass per bucket, all before the engine is ready.

Every table of a bucket lives in one device buffer that one pinned copy fills; a graph reads
nothing else that changes. All graphs share one memory pool, since only one runs at a time. No
graph is captured while serving: a forest that fits no bucket runs eagerly.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adjudge.device_tables import views
from adjudge.forest import Forest, plan
from adjudge.layout import Bucket, Layout, ladder, layout

if TYPE_CHECKING:
    from adjudge.config import EngineConfig
    from adjudge.executor import Executor
    from adjudge.progress import Progress

LOG = logging.getLogger("adjudge.graphs")


@dataclass(frozen=True, slots=True)
class Captured:
    """A pass of one bucket: its pinned and device tables, the graph, and where it writes.

    copied: when the pinned tables were last read.
    """

    pinned: Tensor
    copied: torch.cuda.Event
    tables: Tensor
    graph: torch.cuda.CUDAGraph
    hidden_QH: Tensor


@dataclass(slots=True)
class Graphs:
    """Captured passes by bucket, smallest first."""

    captured: dict[Bucket, Captured] = field(default_factory=dict)
    num_failures: int = 0

    @property
    def num_captures(self) -> int:
        return len(self.captured)

    def bucket(self, forest: Forest) -> Bucket | None:
        """The smallest captured bucket that the forest fits, or None: then it runs eagerly."""
        if not self.captured or forest.num_rows > next(reversed(self.captured)).rows:
            return None
        return next((bucket for bucket in self.captured if bucket.fits(forest)), None)

    def replay(self, plan: Layout) -> Tensor:
        """[Q, H] of a pass laid out for a captured bucket; valid until the next pass."""
        if plan.bucket is None:
            raise ValueError("a layout without a bucket has no graph")
        captured = self.captured[plan.bucket]
        captured.copied.synchronize()
        captured.pinned.numpy()[:] = plan.buffer
        captured.tables.copy_(captured.pinned, non_blocking=True)
        captured.copied.record()
        captured.graph.replay()
        return captured.hidden_QH[: plan.num_readouts]


def capture(
    executor: Executor, config: EngineConfig, *, progress: Progress | None = None
) -> Graphs:
    """One graph per bucket. A capture that fails is logged, counted and survived: its forests
    take a larger bucket, or run eagerly."""
    graphs = Graphs()
    wanted = ladder(config.max_batch_tokens, executor.model.config.layer_weights)
    pool = torch.cuda.graph_pool_handle()
    # Largest first, so that the smaller passes live in the memory of the largest.
    made: dict[Bucket, Captured] = {}
    for done, bucket in enumerate(reversed(wanted)):
        try:
            made[bucket] = _capture(executor, bucket, pool)
        except torch.cuda.OutOfMemoryError as error:
            graphs.num_failures += 1
            LOG.warning("no graph for a pass of %d rows: %s", bucket.rows, error)
        if progress is not None:
            progress("graphs captured", done + 1, len(wanted))
    graphs.captured = {bucket: made[bucket] for bucket in wanted if bucket in made}
    return graphs


def _capture(executor: Executor, bucket: Bucket, pool: Any) -> Captured:
    example = layout(plan([np.arange(1, 2, dtype=np.int32)]), height=executor.height, bucket=bucket)
    device = executor.device.torch_device
    pinned = torch.from_numpy(example.buffer).pin_memory()
    tables = pinned.to(device)
    seen = views(example, tables)
    seen = replace(seen, level_runs=(0,) * bucket.levels)
    executor.model.forward(seen)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        hidden_QH = executor.model.forward(seen)
    return Captured(pinned, torch.cuda.Event(), tables, graph, hidden_QH)
