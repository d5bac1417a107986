"""The engine: a checkpoint, a compiler, a model and heads, joined. It owns no mathematics.

request → compile → prepare (forest, tables) → run (one forward, logits) → answer
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, overload

import torch

from adjudge.checkpoint import Checkpoint, open_checkpoint, random_checkpoint
from adjudge.compiler import Compiler
from adjudge.config import EngineConfig
from adjudge.engine_door import Item, Logits, Pass, Work
from adjudge.errors import ConfigError, DeviceError
from adjudge.executor import Layout, layout, to_device
from adjudge.families import Family, ModelCard
from adjudge.forest import count_rows, plan
from adjudge.heads import Heads
from adjudge.models.qwen3_5 import Qwen3_5
from adjudge.progress import Progress
from adjudge.wire import Request, Response, response_to


@dataclass(frozen=True, slots=True)
class Part:
    """One forest of a pass: its tables, the items in it, and the readout row of each."""

    layout: Layout
    items: Sequence[Item]
    indices: Sequence[int]
    readouts: Sequence[int]


class Engine:
    """One loaded model. `decide` is for Python callers; the service uses the other methods."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig, progress: Progress) -> None:
        self.card: ModelCard = checkpoint.card
        self.device = choose_device(config)
        self.dtype = choose_dtype(config, self.device)
        self.max_rows = config.max_batch_tokens
        self._compiler = Compiler.of(self.card, checkpoint.tokenizer_path, config)
        self._model = Qwen3_5.load(
            checkpoint.text_config,
            checkpoint.weights,
            device=self.device,
            dtype=self.dtype,
            progress=progress,
        )
        self._heads = Heads.of(checkpoint, device=self.device, dtype=self.dtype)
        self._lock = threading.Lock()
        self._passes = 0

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

    def prepare(self, items: Sequence[Item]) -> list[Part]:
        """One forest for each scope among the items. Touches no device."""
        by_scope: dict[int, list[int]] = {}
        for index, item in enumerate(items):
            by_scope.setdefault(item.scope, []).append(index)
        parts = []
        for indices in by_scope.values():
            chosen = [items[index] for index in indices]
            forest = plan([item.token_ids for item in chosen])
            parts.append(Part(layout(forest), chosen, indices, forest.prompt_readout.tolist()))
        return parts

    def run(self, plan: Sequence[Part]) -> Pass:
        """One forward over each forest. Raises DeviceError when the device is unsound."""
        logits: dict[int, Logits] = {}
        try:
            for part in plan:
                hidden_QH = self._model.forward(to_device(part.layout, self.device))
                readouts = [item.readout for item in part.items]
                found = self._heads.logits(hidden_QH, readouts, part.readouts)
                logits.update(zip(part.indices, found, strict=True))
        except torch.AcceleratorError as error:
            raise DeviceError(f"the device failed: {str(error).partition(chr(10))[0]}") from error
        self._passes += 1
        rows = sum(part.layout.num_rows for part in plan)
        return Pass([logits[index] for index in range(len(logits))], rows, padded_rows=rows)

    def answer(self, work: Work, logits: Sequence[Logits], metadata: Mapping[str, Any]) -> Response:
        """Typed answers from one logits array per prompt."""
        lengths = [len(ids) for ids in work.token_ids]
        return self.family.answer(work.compiled, logits, lengths, metadata)

    @overload
    def decide(self, request: Request) -> Response: ...
    @overload
    def decide(self, request: Mapping[str, Any]) -> dict[str, Any]: ...
    def decide(self, request: Request | Mapping[str, Any]) -> Response | dict[str, Any]:
        """Answer a request: a dict by a dict, a Request by a Response.

        Raises RequestError. Threads may share an engine; they take turns.
        """
        began, work = monotonic(), self.compile(request)
        items = [
            Item(token_ids, prompt.readout)
            for token_ids, prompt in zip(work.token_ids, work.compiled.prompts, strict=True)
        ]
        logits: list[Logits] = []
        rows = 0
        with self._lock:
            while len(logits) < len(items):
                done = self.run(self.prepare(self._fitting(items[len(logits) :])))
                logits += done.logits
                rows += done.rows
        saved = {"enabled": True, "scope": "request", "saved_tokens": work.prompt_tokens - rows}
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
        """Device, dtype and passes so far."""
        return {
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "passes": self._passes,
        }

    def close(self) -> None:
        """Give the memory back. The engine answers nothing afterwards."""
        del self._model, self._heads
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def open_model(config: EngineConfig) -> Checkpoint:
    """The checkpoint that the configuration names. Raises ConfigError, CheckpointError."""
    if config.model is not None and config.random is not None:
        raise ConfigError("a model folder and random weights were both asked for; leave one out")
    if config.random is not None:
        return random_checkpoint(config.random)
    if config.model is None:
        raise ConfigError("no model is named; give a folder, or random='0.8b' for random weights")
    return open_checkpoint(config.model, adapter=config.adapter, base=config.base)


def compiler(config: EngineConfig) -> Compiler:
    """What compiles requests for the configured model, without its weights."""
    checkpoint = open_model(config)
    return Compiler.of(checkpoint.card, checkpoint.tokenizer_path, config)


def choose_device(config: EngineConfig) -> torch.device:
    """The configured device. Raises ConfigError when it is asked for and not there."""
    present = torch.cuda.is_available()
    if config.device == "cuda" and not present:
        raise ConfigError("device is cuda, but torch finds none; check the driver, or use cpu")
    return torch.device("cuda" if present and config.device != "cpu" else "cpu")


def choose_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """bfloat16 or float32."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
