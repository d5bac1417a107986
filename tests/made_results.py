"""Results as `bench` writes them, made up."""

from __future__ import annotations

from typing import Any

from adjudge.proof.evidence import Gate, gather
from adjudge.proof.result import (
    EngineResult,
    Group,
    LayoutResult,
    OpTime,
    Pass,
    ServeResult,
)
from adjudge.proof.spread import Latency

ANSWERS: dict[str, dict[str, Any]] = {
    "r1": {
        "n": {"type": "noul", "noul": 0.51},
        "c": {
            "type": "choice",
            "choice": "a",
            "probabilities": {"a": 0.6, "b": 0.4},
            "confidence": 0.2,
        },
    },
    "r2": {
        "s": {
            "type": "score",
            "score": 1.2,
            "legend": {"0": "l", "1": "m", "2": "h"},
            "probabilities": {"0": 0.2, "1": 0.4, "2": 0.4},
            "confidence": 0.1,
        }
    },
}


def serve_result(times: dict[str, tuple[float, ...]], answers: Any = None) -> ServeResult:
    """One pass with these latencies of each request, two rounds."""
    every = [time for one in times.values() for time in one]
    latency = Latency.of(every)
    return ServeResult(
        workload="w",
        workload_sha256="0" * 64,
        vocabulary=None,
        seed=None,
        requests=len(times),
        candidates=6,
        model="m",
        warm_up_requests=1,
        client_ms=0.1,
        peak_memory_mib=None,
        device_memory_mib=18_000,
        passes=(
            Pass(
                mode="closed loop, 1",
                rounds=2,
                seconds=1.0,
                requests=len(every),
                turned_away=0,
                latency_ms=latency,
                requests_per_s=1.0,
                decisions_per_s=1.0,
                prompt_tokens_per_s=1.0,
                unique_tokens_per_s=None,
                utilisation=None,
                groups=(Group("g", len(every), latency),),
                parts_ms={"run": 7.5, "elsewhere": 0.5},
                times_ms=times,
            ),
        ),
        quality=None,
        answers=ANSWERS if answers is None else answers,
        answers_sha256="a" * 64,
        evidence=gather(gates=[Gate("g", True)]),
    )


def engine_result(pass_ms: float) -> EngineResult:
    """One layout, one pass."""
    layout = LayoutResult(
        name="64 × 1",
        unique_tokens=64,
        padded_tokens=64,
        prompt_tokens=64,
        graph=False,
        pass_ms=pass_ms,
        fastest_ms=pass_ms,
        products_ms=1.0,
        ratio=pass_ms,
        floor_ms=None,
        utilisation=None,
        transformers_ms=None,
        ops=(OpTime("matrix products", 3, 0.75),),
    )
    return EngineResult(
        model="m",
        dtype="float32",
        repeats=1,
        load_s=1.0,
        peak_memory_mib=None,
        layouts=(layout,),
        evidence=gather(gates=[]),
    )
