"""The service on a fake engine with a planted fault: python -m tests.served_engine FAULT [KEY].

Prints `ready URL` as `adjudge serve` does. FAULT is a name in FAULTS; "none" plants nothing.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from adjudge.config import ServiceConfig
from adjudge.engine_door import Item, Logits, Pass, Work
from adjudge.service import serve
from adjudge.wire import ChoiceAnswer, NoulAnswer, Response, ScoreAnswer
from tests.fake_engine import CARD, FakeEngine

replace = msgspec.structs.replace


def sum_off(work: Work, response: Response) -> Response:
    """Probabilities that sum to 0.9."""
    return with_answers(
        response,
        lambda a: (
            a
            if isinstance(a, NoulAnswer)
            else replace(a, probabilities={k: 0.9 * p for k, p in a.probabilities.items()})
        ),
    )


def argmax_off(work: Work, response: Response) -> Response:
    """The least probable option as the choice."""
    return with_answers(
        response,
        lambda a: (
            replace(a, choice=min(a.probabilities, key=a.probabilities.__getitem__))
            if isinstance(a, ChoiceAnswer)
            else a
        ),
    )


def expectation_off(work: Work, response: Response) -> Response:
    """A score that is not Σ i·p."""
    return with_answers(
        response, lambda a: replace(a, score=a.score / 2) if isinstance(a, ScoreAnswer) else a
    )


def range_off(work: Work, response: Response) -> Response:
    """A probability of yes above 1."""
    return with_answers(
        response, lambda a: NoulAnswer(noul=1.5) if isinstance(a, NoulAnswer) else a
    )


def name_off(work: Work, response: Response) -> Response:
    """Answers under other names."""
    return replace(response, answers={f"{name}!": a for name, a in response.answers.items()})


def sibling_off(work: Work, response: Response) -> Response:
    """Yes gets less probable with every other prompt of the request."""
    return with_answers(
        response,
        lambda a: NoulAnswer(noul=a.noul / len(work.token_ids)) if isinstance(a, NoulAnswer) else a,
    )


FAULTS: dict[str, Callable[[Work, Response], Response]] = {
    "none": lambda work, response: response,
    "sum": sum_off,
    "argmax": argmax_off,
    "expectation": expectation_off,
    "range": range_off,
    "name": name_off,
    "sibling": sibling_off,
    "batch": lambda work, response: response,
    "error": lambda work, response: response,
}


def with_answers(response: Response, change: Callable[[Any], Any]) -> Response:
    return replace(response, answers={name: change(a) for name, a in response.answers.items()})


class FaultyEngine(FakeEngine):
    """batch: logits drift with every pass; error: every fifth pass raises."""

    def __init__(self, fault: str) -> None:
        super().__init__(card=dataclasses.replace(CARD, max_prompt_tokens=8192))
        self._fault = fault
        self._num_passes = 0

    def run(self, plan: Sequence[Item]) -> Pass:
        self._num_passes += 1
        if self._fault == "error" and self._num_passes % 5 == 0:
            raise RuntimeError("planted")
        done = super().run(plan)
        self.passes.clear()
        if self._fault == "batch":
            drift = np.float32(1e-6 * self._num_passes)
            return Pass([logits + drift for logits in done.logits], done.rows, done.padded_rows)
        return done

    def answer(self, work: Work, logits: Sequence[Logits], metadata: Mapping[str, Any]) -> Response:
        return FAULTS[self._fault](work, super().answer(work, logits, metadata))


if __name__ == "__main__":
    config = ServiceConfig(port=0, log_level="error", api_key=tuple(sys.argv[2:]))
    sys.exit(serve(lambda: FaultyEngine(sys.argv[1]), config))
