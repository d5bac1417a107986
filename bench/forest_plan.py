"""How long planning takes: 255 candidates over a long state, and a crowd of short prompts.

Run it: python bench/forest_plan.py. Prints the machine, a table and one JSON line last.
"""

from __future__ import annotations

import json
import platform
import statistics
import time

import numpy as np

from adjudge.forest import plan

VOCABULARY = 248_044


def crowd(rng: np.random.Generator, state: int, tail: int, count: int) -> list[np.ndarray]:
    prefix = rng.integers(0, VOCABULARY, state)
    tails = rng.integers(0, VOCABULARY, (count, tail))
    return [np.concatenate([prefix, row]).astype(np.int32) for row in tails]


def median_ms(prompts: list[np.ndarray], rounds: int = 50) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        plan(prompts)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def main() -> None:
    rng = np.random.default_rng(0)
    layouts = {
        "3072 + 38 x 255": crowd(rng, 3072, 38, 255),
        "3093 + 38 x 255": crowd(rng, 3093, 38, 255),
        "1024 + 38 x 32": crowd(rng, 1024, 38, 32),
        "16 short prompts": crowd(rng, 0, 40, 16),
        "1 x 4096": crowd(rng, 4096, 0, 1),
    }
    print(f"{platform.processor() or platform.machine()}, numpy {np.__version__}, one thread")
    result = {}
    for name, prompts in layouts.items():
        result[name] = round(median_ms(prompts), 3)
        forest = plan(prompts)
        print(
            f"{name:20} {result[name]:8.3f} ms  {forest.num_rows:6} rows"
            f"  {forest.num_chunks} chunks"
        )
    print(json.dumps({"bench": "forest_plan", "median_ms": result, "machine": platform.platform()}))


if __name__ == "__main__":
    main()
