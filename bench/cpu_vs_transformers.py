"""Passes on a CPU against transformers on the same machine, BF16, in one run.

Run it: python bench/cpu_vs_transformers.py [--geometry 0.8b] [--layers N]. The gate comes first:
hidden states close to transformers', and a candidate's bits the same alone and in company. Then
one prompt of 512 tokens, and a state of 384 tokens with 16 candidates of 32, which transformers
reads once per candidate. Prints the machine, a table and one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from adjudge.checkpoint import random_checkpoint
from adjudge.config import EngineConfig
from adjudge.device_tables import to_device
from adjudge.executor import Executor
from adjudge.forest import plan
from adjudge.layout import layout
from adjudge.proof.transformers_model import TransformersModel

CPU = torch.device("cpu")
FARTHEST = 0.05
"""Largest relative L2 distance of two BF16 hidden states that the gate lets pass."""


def hidden(executor: Executor, prompts: list[np.ndarray]) -> Tensor:
    forest = plan(prompts)
    tables = to_device(layout(forest, height=executor.height), CPU)
    found = executor.model.forward(tables)
    return found[torch.from_numpy(forest.prompt_readout).long()]


def seconds(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--geometry", default="0.8b")
    parser.add_argument("--layers", type=int, default=None, help="only the first layers")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    def opened():  # type: ignore[no-untyped-def]
        return random_checkpoint(options.geometry, num_layers=options.layers)

    config = EngineConfig(random=options.geometry, device="cpu", dtype="bfloat16")
    ours = Executor.load(opened(), config)
    theirs = TransformersModel(opened(), CPU, torch.bfloat16)
    rng = np.random.default_rng(0)
    vocabulary = ours.model.config.vocab_size
    long = rng.integers(0, vocabulary, 512).astype(np.int32)
    state = rng.integers(0, vocabulary, 384)
    tails = rng.integers(0, vocabulary, (16, 32))
    candidates = [np.concatenate([state, tail]).astype(np.int32) for tail in tails]

    together, expected = hidden(ours, candidates), theirs.hidden(candidates[0]).float()
    distance = float((together[0].float() - expected).norm() / expected.norm())
    alone = hidden(ours, candidates[:1])
    if not torch.equal(together[:1], alone) or distance > FARTHEST:
        print(f"gate failed: distance {distance:.4f}, or bits differ in company", file=sys.stderr)
        return 1

    result = {}
    for name, mine, other in (
        ("512", lambda: hidden(ours, [long]), lambda: theirs.hidden(long)),
        (
            "384 + 32 x 16",
            lambda: hidden(ours, candidates),
            lambda: [theirs.hidden(prompt) for prompt in candidates],
        ),
    ):
        mine_s = seconds(mine, options.rounds)
        other_s = seconds(other, 1 if name != "512" else options.rounds)
        result[name] = {"adjudge_s": mine_s, "transformers_s": other_s, "ratio": other_s / mine_s}
        print(
            f"{name:14} {mine_s:7.2f} s  transformers {other_s:7.2f} s  {other_s / mine_s:5.1f} x"
        )
    facts = {**ours.device.facts(), "threads": torch.get_num_threads(), "distance": distance}
    print(json.dumps({"bench": "cpu_vs_transformers", **facts, **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
