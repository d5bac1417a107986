"""Requests and token trees at random, within what a family takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjudge.engine import Engine
from adjudge.engine_door import Item, TokenIds
from adjudge.families import Limits


def random_requests(
    limits: Limits, rng: np.random.Generator, *, count: int
) -> list[dict[str, Any]]:
    """Requests over three states, with one to three questions of the types that are answered."""
    return [
        {
            "state": f"State {i % 3}. " * (1 + 2 * (i % 3)),
            "questions": {f"q{j}": _question(limits, rng) for j in range(rng.integers(1, 4))},
            "x_diagnostics": i % 2 == 0,
        }
        for i in range(count)
    ]


def _question(limits: Limits, rng: np.random.Generator) -> dict[str, Any]:
    kind = limits.answers[rng.integers(len(limits.answers))]
    question: dict[str, Any] = {"type": kind, "instructions": f"Which of {rng.integers(5)}?"}
    if kind == "choice":
        options = rng.integers(limits.min_options + 1, min(limits.max_options, 14) + 1)
        question["criteria"] = {f"o{i}": None if i % 2 else f"no. {i}" for i in range(options)}
    elif kind == "score":
        levels = rng.integers(limits.min_levels, min(limits.max_levels, 6) + 1)
        question["criteria"] = [f"level {i}" for i in range(levels)]
    return question


def items_of(engine: Engine, requests: list[dict[str, Any]]) -> list[Item]:
    """The prompts of all requests, free to share whatever they have in common."""
    return [
        Item(ids, prompt.readout)
        for request in requests
        for work in (engine.compile(request),)
        for ids, prompt in zip(work.token_ids, work.compiled.prompts, strict=True)
    ]


def random_forest(
    rng: np.random.Generator, *, vocab_size: int, most_tokens: int, most_prompts: int = 12
) -> list[TokenIds]:
    """Prompts of which each continues a cut of an earlier one."""
    prompts = [rng.integers(0, vocab_size, rng.integers(1, most_tokens))]
    for _ in range(rng.integers(1, most_prompts)):
        parent = prompts[rng.integers(len(prompts))]
        tail = rng.integers(0, vocab_size, rng.integers(1, most_tokens // 2))
        prompts.append(np.concatenate([parent[: rng.integers(len(parent) + 1)], tail]))
    return [prompt.astype(np.int32) for prompt in prompts]
