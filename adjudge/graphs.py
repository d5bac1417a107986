"""CUDA graphs: one captured pass per bucket, all before the engine is ready.

Every table of a bucket lives in one device buffer that one pinned copy fills; a graph reads
nothing else that changes. All graphs share one memory pool and one place for their results, since
only one runs at a time. No graph is captured while serving: a forest that suits no bucket runs
eagerly.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adjudge.buckets import LAUNCHED_WORK, Bucket, bucket_of, ladder
from adjudge.device_tables import views
from adjudge.forest import Forest, plan
from adjudge.layout import Layout, layout

if TYPE_CHECKING:
    from adjudge.config import EngineConfig
    from adjudge.executor import Executor
    from adjudge.progress import Progress

LOG = logging.getLogger("adjudge.graphs")


@dataclass(frozen=True, slots=True)
class Captured:
    """A pass of one bucket: its pinned and device tables, and the graph.

    copied: when the pinned tables were last read.
    """

    pinned: Tensor
    copied: torch.cuda.Event
    tables: Tensor
    graph: torch.cuda.CUDAGraph


@dataclass(slots=True)
class Graphs:
    """Captured passes by bucket, smallest first. hidden_QH: what the last replayed one wrote;
    launched_rows: see buckets.bucket_of."""

    hidden_QH: Tensor
    launched_rows: int
    captured: dict[Bucket, Captured] = field(default_factory=dict)
    num_failures: int = 0

    @property
    def num_captures(self) -> int:
        return len(self.captured)

    def bucket(self, forest: Forest) -> Bucket | None:
        """The captured bucket that the forest is padded to, or None: then it runs eagerly."""
        return bucket_of(forest, self.captured, self.launched_rows)

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
        return self.hidden_QH[: plan.num_readouts]


def capture(
    executor: Executor, config: EngineConfig, *, progress: Progress | None = None
) -> Graphs:
    """One graph per bucket. A capture that finds no memory is logged, counted and survived: its
    forests take a larger bucket, or run eagerly."""
    layer_weights, embed_VH = executor.model.config.layer_weights, executor.model.embed_VH
    wanted = ladder(config.max_batch_tokens, layer_weights)
    most_readouts = max((bucket.readouts for bucket in wanted), default=0)
    hidden_QH = embed_VH.new_empty(most_readouts, embed_VH.shape[1])
    graphs = Graphs(hidden_QH, LAUNCHED_WORK // layer_weights)
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(embed_VH.device)
    # Largest first, so that the smaller passes live in the memory of the largest.
    made: dict[Bucket, Captured] = {}
    for done, bucket in enumerate(reversed(wanted)):
        try:
            made[bucket] = _capture(executor, bucket, hidden_QH, pool, stream)
        except torch.cuda.OutOfMemoryError as error:
            graphs.num_failures += 1
            LOG.warning("no graph for a pass of %d rows: %s", bucket.rows, error)
        if progress is not None:
            progress("graphs captured", done + 1, len(wanted))
    graphs.captured = {bucket: made[bucket] for bucket in wanted if bucket in made}
    return graphs


def _capture(
    executor: Executor, bucket: Bucket, hidden_QH: Tensor, pool: Any, stream: torch.cuda.Stream
) -> Captured:
    """Not by torch.cuda.graph, which empties the allocator's cache each time: that takes long, and
    may give the room that is kept for the largest pass back."""
    example = layout(plan([np.arange(1, 2, dtype=np.int32)]), height=executor.height, bucket=bucket)
    device = executor.device.torch_device
    pinned = torch.from_numpy(example.buffer).pin_memory()
    tables = pinned.to(device)
    seen = views(example, tables)
    seen = replace(seen, level_runs=(0,) * bucket.levels)
    executor.model.of_each_kind().forward(seen)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool)
        try:
            hidden_QH[: bucket.readouts].copy_(executor.model.forward(seen))
        except BaseException:
            with suppress(RuntimeError):  # which would hide what the capture ended with
                graph.capture_end()
            raise
        graph.capture_end()
    return Captured(pinned, torch.cuda.Event(), tables, graph)
