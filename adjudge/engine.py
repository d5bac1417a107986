"""The engine: a checkpoint, a compiler and an executor, joined. It owns no mathematics.

request → compile → prepare (forest, tables) → run (one forward, logits) → answer
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, overload

from adjudge import memory
from adjudge.checkpoint import Checkpoint, open_checkpoint, random_checkpoint
from adjudge.compiler import Compiler
from adjudge.config import EngineConfig
from adjudge.device import open_device
from adjudge.engine_door import Item, Logits, Pass, Work
from adjudge.errors import ConfigError
from adjudge.executor import Executor
from adjudge.families import Family, ModelCard, Readout
from adjudge.forest import count_rows, plan
from adjudge.layout import Layout
from adjudge.prefixes import Prefixes
from adjudge.progress import Progress
from adjudge.reuse import Reuse, plan_on
from adjudge.wire import Request, Response, response_to


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned pass: its tables, and for each item its readout and the readout row it is at.

    reuse: where states of prefixes are kept, what the pass does with them.
    """

    layout: Layout
    readouts: Sequence[Readout]
    rows: Sequence[int]
    reuse: Reuse | None = None


class Engine:
    """One loaded model. `decide` is for Python callers; the service uses the other methods."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        progress: Progress,
        *,
        compiler: Compiler | None = None,
    ) -> None:
        """compiler: the checkpoint's under this configuration, where there is one already."""
        self.card: ModelCard = checkpoint.card
        self.max_rows = config.max_batch_tokens
        self._compiler = compiler or Compiler.of_checkpoint(checkpoint, config)
        self.executor = Executor.load(checkpoint, config, progress=progress)
        states = self.executor.states
        self._prefixes: Prefixes | None = None if states is None else states.prefixes
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        path: str | None = None,
        config: EngineConfig | None = None,
        *,
        progress: Progress = lambda what, done, total: None,
    ) -> Engine:
        """Load a model folder, or `config.model`, or random weights of `config.random`.

        Raises CheckpointError, ConfigError, DeviceError.
        """
        config = EngineConfig() if config is None else config
        if path is not None:
            config = replace(config, model=str(path))
        return cls(open_model(config), config, progress)

    @property
    def family(self) -> Family:
        return self._compiler.family

    def compile(self, request: Request | Mapping[str, Any]) -> Work:
        """Prompts and token ids of a request. Raises RequestError."""
        return self._compiler.compile(request)

    def prepare(self, items: Sequence[Item]) -> Plan:
        """The forest of these items, as tables. Touches no device."""
        reuse = None
        if self._prefixes is None:
            forest = plan([i.token_ids for i in items], scopes=[i.scope for i in items])
        else:
            reuse = plan_on(items, self._prefixes)
            forest = reuse.forest
        return Plan(
            layout=self.executor.prepare(forest, eager=reuse is not None and reuse.touches_states),
            readouts=[item.readout for item in items],
            rows=forest.prompt_readout.tolist(),
            reuse=reuse,
        )

    def run(self, plan: Plan) -> Pass:
        """One forward over a planned pass. Raises DeviceError when the device is unsound.

        A plan made before states came or went is made again: only this thread changes the pool, so
        what the plan reads stays until the pass ends.
        """
        reuse = plan.reuse
        if reuse is not None and self._prefixes is not None:
            if not reuse.is_current(self._prefixes):
                plan = self.prepare(reuse.items)
            reuse = plan.reuse
        logits = self.executor.run(plan.layout, plan.readouts, plan.rows, reuse)
        done = Pass(logits, plan.layout.num_rows, plan.layout.padded_rows)
        if reuse is None:
            return done
        return replace(done, reused_rows=reuse.reused_rows, hit_tokens=reuse.hit_tokens)

    def answer(self, work: Work, logits: Sequence[Logits], metadata: Mapping[str, Any]) -> Response:
        """Typed answers from one logits array per prompt."""
        lengths = [len(ids) for ids in work.token_ids]
        facts = {"adapter": self.executor.adapter, **metadata}
        return self.family.answer(work.compiled, logits, lengths, facts)

    @overload
    def decide(self, request: Request) -> Response: ...
    @overload
    def decide(self, request: Mapping[str, Any]) -> dict[str, Any]: ...
    def decide(self, request: Request | Mapping[str, Any]) -> Response | dict[str, Any]:
        """Answer a request: a dict by a dict, a Request by a Response.

        Raises RequestError. Threads may share an engine; they take turns.
        """
        began, work = monotonic(), self.compile(request)
        items = work.items(0, len(work.token_ids))
        logits: list[Logits] = []
        rows = hit_tokens = 0
        with self._lock:
            while len(logits) < len(items):
                done = self.run(self.prepare(self._fitting(items[len(logits) :])))
                logits += done.logits
                rows += done.rows
                hit_tokens = max(hit_tokens, *done.hit_tokens, 0)
        saved = {
            "enabled": True,
            "scope": "request",
            "saved_tokens": work.prompt_tokens - rows,
            "hit_tokens": hit_tokens,
        }
        metadata = {"inference_seconds": monotonic() - began, "prefix_cache": saved}
        response = self.answer(work, logits, metadata)
        return response if isinstance(request, Request) else response_to(response)

    def _fitting(self, items: Sequence[Item]) -> Sequence[Item]:
        """As many of the first items as make one pass; one at least."""
        ids = [item.token_ids for item in items]
        if sum(map(len, ids)) <= self.max_rows:
            return items
        fit = bisect_right(range(len(ids)), self.max_rows, key=lambda i: count_rows(ids[: i + 1]))
        return items[: max(fit, 1)]

    def health(self) -> dict[str, Any]:
        """Device, dtype, self-check and counters. Raises DeviceError if the device is unsound."""
        return self.executor.health()

    def close(self) -> None:
        """Give the memory back. The engine answers nothing afterwards; closing twice is fine."""
        self.executor.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def open_model(config: EngineConfig) -> Checkpoint:
    """The checkpoint that the configuration names. Raises ConfigError, CheckpointError."""
    if config.model is not None and config.random is not None:
        raise ConfigError("a model folder and random weights were both asked for; leave one out")
    if config.random is not None:
        return random_checkpoint(config.random)
    if config.model is None:
        raise ConfigError("no model is named; give a folder, or random='0.8b' for random weights")
    return open_checkpoint(config.model, adapter=config.adapter, base=config.base)


def check_memory(configs: Mapping[str, EngineConfig]) -> None:
    """Whether models that one process serves fit its device together, before any is loaded.

    Reads headers only; a single model is checked when it is loaded, and a CPU's memory is not.
    Raises DeviceError, and ConfigError or CheckpointError for what cannot be opened.
    """
    config = next(iter(configs.values()))
    device = open_device(config)
    if len(configs) == 1 or not device.is_cuda:
        return
    plans = {}
    for name, each in configs.items():
        opened = open_model(each)
        plans[name] = memory.plan(
            opened.text_config,
            each,
            item_bytes=device.dtype.itemsize,
            budget=0,
            delta_bytes=opened.weights.delta_bytes,
        )
    memory.check_together(plans, config, device)


def compiler(config: EngineConfig) -> Compiler:
    """What compiles requests for the configured model, without its weights."""
    return Compiler.of_checkpoint(open_model(config), config)
