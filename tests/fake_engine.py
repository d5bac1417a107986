"""An engine without a model: logits are a hash of the token ids, passes wait when told to.

It stands behind the same door as the real engine, so a service test takes milliseconds and can
make the engine slow, wrong or broken on purpose.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from adjudge.engine_door import Item, Logits, Pass, TokenIds, Work
from adjudge.errors import UsageError
from adjudge.families import Compiled, ModelCard, Prompt, Readout
from adjudge.families.open_jev import OpenJev
from adjudge.forest import count_rows
from adjudge.wire import Request, Response, request_from

CARD = ModelCard(
    name="fake/open-jev",
    family="open_jev",
    aliases=("jev-latest", "jev-preview"),
    random_weights=True,
    calibration={"temperature": 2.0},
)


def tokens(text: str) -> TokenIds:
    """One token per byte."""
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32)


def logit(token_ids: TokenIds) -> float:
    """What the fake model answers: depends on the token ids and on nothing else."""
    return zlib.crc32(token_ids.tobytes()) / 2**31 - 1.0


class FakeEngine:
    """gate: passes wait for it (open at first); entered: set when a pass begins;
    break_with: asked with each pass's items, returns what to raise, or None; record: keep the
    items of every pass."""

    def __init__(
        self, *, max_rows: int = 16_384, card: ModelCard = CARD, record: bool = True
    ) -> None:
        self._record = record
        self.card = card
        self.family = OpenJev(card)
        self.max_rows = max_rows
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.break_with: Callable[[Sequence[Item]], BaseException | None] = lambda items: None
        self.unsound: Exception | None = None
        self.passes: list[list[Item]] = []
        self.num_prepared = 0
        self.closed = False

    def compile(self, request: Request) -> Work:
        compiled = self.family.compile(request)
        token_ids = []
        for prompt in compiled.prompts:
            ids = tokens("".join(str(segment) for segment in prompt.segments))
            limit = min(self.family.limits.max_prompt_tokens, self.max_rows)
            if len(ids) > limit:
                raise UsageError(
                    f"question {prompt.question!r} has {len(ids)} tokens and the limit is {limit}"
                )
            token_ids.append(ids)
        return Work(compiled, token_ids)

    def prepare(self, items: Sequence[Item]) -> Sequence[Item]:
        self.num_prepared += 1
        return items

    def run(self, plan: Sequence[Item]) -> Pass:
        self.entered.release()
        self.gate.wait()
        failure = self.break_with(plan)
        if failure is not None:
            raise failure
        if self._record:
            self.passes.append(list(plan))
        rows = count_rows([item.token_ids for item in plan])
        logits = [np.array([logit(item.token_ids)], dtype=np.float32) for item in plan]
        return Pass(logits, rows=rows, padded_rows=-(-rows // 64) * 64)

    def answer(self, work: Work, logits: Sequence[Logits], metadata: Mapping[str, Any]) -> Response:
        lengths = [len(ids) for ids in work.token_ids]
        return self.family.answer(work.compiled, logits, lengths, metadata)

    def health(self) -> dict[str, Any]:
        if self.unsound is not None:
            raise self.unsound
        return {"device": "none", "dtype": "float32"}

    def close(self) -> None:
        self.closed = True


def work_of(*prompts: Sequence[int]) -> Work:
    """Work with these token ids, for tests of the scheduler alone."""
    request = request_from({"state": "", "questions": {"q": {"type": "noul", "instructions": ""}}})
    made = tuple(Prompt((tuple(ids),), Readout(), "q") for ids in prompts)
    compiled = Compiled(request, made, {"q": range(len(made))})
    return Work(compiled, [np.array(ids, dtype=np.int32) for ids in prompts])
