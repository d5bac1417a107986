"""The engine against transformers on the same weights and prompts: how far, and what it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from adjudge.config import EngineConfig
from adjudge.engine import Engine, open_model
from adjudge.engine_door import Logits, TokenIds, Work
from adjudge.errors import ConfigError, RequestError
from adjudge.forest import count_rows, plan
from adjudge.progress import Progress
from adjudge.proof.drift import drift
from adjudge.proof.evidence import gather
from adjudge.proof.result import Parity, ParityResult
from adjudge.proof.spread import Percentiles
from adjudge.proof.transformers_model import TransformersModel
from adjudge.proof.workloads import Workload
from adjudge.wire import parse_request, response_to

HiddenOf = Callable[[Sequence[TokenIds]], Tensor]
"""Prompts of one request -> [P, H], the final norm's output at each prompt's last token."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one implementation makes of all requests. hidden_PH: of every prompt, float64 on the
    host; logits: one array per prompt; answers: as in drift.Answers."""

    name: str
    hidden_PH: Tensor
    logits: list[Logits]
    answers: dict[str, dict[str, Any]]


def parity(
    config: EngineConfig,
    workload: Workload,
    load: Callable[[], Engine],
    progress: Progress,
    *,
    with_float32: bool,
    model: dict[str, Any],
) -> ParityResult:
    """Runs all prompts through the engine, then through transformers in the engine's dtype.

    with_float32: then through transformers in float32, as a reference of both. Raises ConfigError
    for a request that the model does not take, and what loading raises.
    """
    engine = load()
    try:
        view = _View(engine, workload, progress)
        device, dtype = engine.executor.device.torch_device, engine.executor.device.dtype
        ours = view.of("adjudge", _by_forest(engine))
        dtypes = [dtype] if not with_float32 or dtype == torch.float32 else [dtype, torch.float32]
        theirs = []
        for each in dtypes:
            peer = TransformersModel(open_model(config), device, each)
            name = f"transformers {str(each).removeprefix('torch.')}"
            theirs.append(view.of(name, _one_by_one(peer)))
            del peer
    finally:
        engine.close()
    pairs = [(ours, other) for other in theirs] + list(pairwise(theirs))
    return ParityResult(
        model=engine.card.name,
        dtype=str(dtype).removeprefix("torch."),
        workload=workload.name,
        workload_sha256=workload.digest,
        requests=len(view.works),
        prompts=sum(len(work.token_ids) for work in view.works),
        pairs=tuple(_compared(a, b) for a, b in pairs),
        evidence=gather(gates=[], model=model),
    )


class _View:
    """All requests of a workload, compiled once, put to one implementation after the other."""

    def __init__(self, engine: Engine, workload: Workload, progress: Progress) -> None:
        self._engine = engine
        self._workload = workload
        self._progress = progress
        self.works: list[Work] = []
        for case in workload.cases:
            try:
                self.works.append(engine.compile(parse_request(case.body)))
            except RequestError as error:
                raise ConfigError(f"{workload.name}, {case.id}: {error.message}") from None

    def of(self, name: str, hidden_of: HiddenOf) -> Seen:
        hidden: list[Tensor] = []
        logits: list[Logits] = []
        answers: dict[str, dict[str, Any]] = {}
        for done, (case, work) in enumerate(zip(self._workload.cases, self.works, strict=True)):
            hidden_PH = hidden_of(work.token_ids)
            readouts = [prompt.readout for prompt in work.compiled.prompts]
            heads = self._engine.executor.heads
            found = list(heads.logits(hidden_PH, readouts, range(len(readouts))))
            hidden.append(hidden_PH.double().cpu())
            logits += found
            answers[case.id] = response_to(self._engine.answer(work, found, {}))["answers"]
            self._progress(f"requests, {name}", done + 1, len(self.works))
        return Seen(name, torch.cat(hidden), logits, answers)


def _by_forest(engine: Engine) -> HiddenOf:
    """The engine's own passes: shared, and as many prompts at once as fit one."""

    @torch.inference_mode()
    def run(prompts: Sequence[TokenIds]) -> Tensor:
        parts = []
        for batch in _batches(prompts, engine.max_rows):
            forest = plan(batch)
            hidden_QH = engine.executor.hidden(engine.executor.prepare(forest))
            at = torch.from_numpy(forest.prompt_readout).long().to(hidden_QH.device)
            parts.append(hidden_QH[at])
        return torch.cat(parts)

    return run


def _batches(prompts: Sequence[TokenIds], most_rows: int) -> Iterator[list[TokenIds]]:
    batch: list[TokenIds] = []
    for prompt in prompts:
        if batch and count_rows([*batch, prompt]) > most_rows:
            yield batch
            batch = []
        batch.append(prompt)
    yield batch


def _one_by_one(peer: TransformersModel) -> HiddenOf:
    return lambda prompts: torch.stack([peer.hidden(prompt) for prompt in prompts])


def _compared(one: Seen, other: Seen) -> Parity:
    """`other` is the reference that distances are relative to."""
    distances_P = (one.hidden_PH - other.hidden_PH).norm(dim=1) / other.hidden_PH.norm(dim=1)
    logits = [
        abs(float(a) - float(b))
        for mine, theirs in zip(one.logits, other.logits, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    ]
    return Parity(
        name=f"{one.name} against {other.name}",
        hidden=Percentiles.of(distances_P.tolist()),
        logit=Percentiles.of(logits),
        drift=drift(one.answers, other.answers),
    )
