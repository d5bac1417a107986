"""Result files: what a command measured, with its evidence, as one JSON document.

`kind` says which command wrote a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.proof.drift import Drift
from adjudge.proof.evidence import Evidence
from adjudge.proof.spread import Latency, Percentiles


@dataclass(frozen=True, slots=True)
class Group:
    """A part of a pass: requests of one kind and size."""

    name: str
    requests: int
    latency_ms: Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass over a workload. requests: answered ones; turned_away: refused by a full server;
    utilisation: FLOPs of the unique tokens ÷ time ÷ the device's peak, where those are known;
    parts_ms: medians of what the server's server-timing header says, and of the rest, "elsewhere";
    empty where it sends none; times_ms: latencies of each request by its id, round after round."""

    mode: str
    rounds: int
    seconds: float
    requests: int
    turned_away: int
    latency_ms: Latency
    requests_per_s: float
    decisions_per_s: float
    prompt_tokens_per_s: float
    unique_tokens_per_s: float | None
    utilisation: float | None
    groups: tuple[Group, ...]
    parts_ms: Mapping[str, float]
    times_ms: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Answers against labels. accuracy: of choices, and of nouls at 0.5; brier: of nouls;
    level_error: mean distance of scores. None where nothing was labelled."""

    labelled: int
    choice_accuracy: float | None
    noul_accuracy: float | None
    noul_brier: float | None
    level_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeResult:
    """`adjudge bench serve`. peak_memory_mib: of the server's process; device_memory_mib: of its
    device; both at peak and where they could be read;
    client_ms: the median time of one request to a server that does nothing: an upper bound
    of this program's own share; answers: request id -> its answers, as the wire has them;
    answers_sha256: over the bytes of all answers as they were sent, in the workload's order."""

    kind: str = "serve"
    workload: str
    workload_sha256: str
    vocabulary: str | None
    seed: int | None
    requests: int
    candidates: int
    model: str
    warm_up_requests: int
    client_ms: float
    peak_memory_mib: int | None
    device_memory_mib: int | None
    passes: tuple[Pass, ...]
    quality: Quality | None
    answers: Mapping[str, Mapping[str, Any]]
    answers_sha256: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class OpTime:
    """An op, or all kernels of one name: calls in a pass, and their milliseconds together."""

    name: str
    calls: int
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutResult:
    """One synthetic layout in device time (wall time on a CPU), medians. padded_tokens: rows that
    were computed; graph: replayed rather than launched; products_ms: the matrix products of the
    same number of unique rows alone, in turns with the pass; ratio: pass ÷ products; floor_ms:
    weights streamed once, or all products at the device's peak, None where that is not known;
    transformers_ms: the prompts one after the other, None where not run; ops: one pass, by op."""

    name: str
    unique_tokens: int
    padded_tokens: int
    prompt_tokens: int
    graph: bool
    pass_ms: float
    fastest_ms: float
    products_ms: float
    ratio: float
    floor_ms: float | None
    utilisation: float | None
    transformers_ms: float | None
    ops: tuple[OpTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """`adjudge bench engine`. load_s: start to ready; peak_memory_mib: device memory that the
    engine took, None on a CPU."""

    kind: str = "engine"
    model: str
    dtype: str
    repeats: int
    load_s: float
    peak_memory_mib: int | None
    layouts: tuple[LayoutResult, ...]
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of the self-check: what was compared, of what, what was seen, did it hold."""

    name: str
    shape: str
    detail: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """`adjudge check`."""

    kind: str = "check"
    model: str
    dtype: str
    full: bool
    seconds: float
    rows: tuple[Compared, ...]
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Parity:
    """One implementation against another over all prompts: relative L2 of hidden states,
    absolute differences of logits, and the drift of the answers."""

    name: str
    hidden: Percentiles
    logit: Percentiles
    drift: Drift


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityResult:
    """`adjudge parity`."""

    kind: str = "parity"
    model: str
    dtype: str
    workload: str
    workload_sha256: str
    requests: int
    prompts: int
    pairs: tuple[Parity, ...]
    evidence: Evidence


AnyResult = ServeResult | EngineResult | CheckResult | ParityResult

RESULTS: dict[str, type[AnyResult]] = {
    "serve": ServeResult,
    "engine": EngineResult,
    "check": CheckResult,
    "parity": ParityResult,
}
"""`kind` of a result file -> its type."""


def write_result(path: Path, result: Any) -> None:
    """Writes a result, readable by people too. Raises ConfigError."""
    write_text(path, msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n")


def write_text(path: Path, text: str) -> None:
    """Raises ConfigError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
