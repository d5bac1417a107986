"""Every setting, once: its type, default, unit and help. Nothing else holds a default.

A setting is a field of one of these frozen dataclasses. Its flag, environment variable, file
entry and help line follow from the field (see `origins`), so a new setting is one new field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")


def setting(default: T, text: str, *, unit: str | None = None, secret: bool = False) -> T:
    """A field with its help text. unit: shown after the value; secret: never printed."""
    made: T = field(default=default, metadata={"help": text, "unit": unit, "secret": secret})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What is loaded, and how it runs."""

    model: str | None = setting(None, "model folder; without one, a demo checkpoint is made")
    base: str | None = setting(None, "folder of the base model, for a package of adapter and head")
    adapter: Literal["merged", "unmerged"] = setting(
        "merged", "fold a LoRA into the weights at load, or keep it as an fp32 branch"
    )
    random: Literal["0.8b", "2b", "4b", "9b", "27b"] | None = setting(
        None, "random weights of this released geometry, without a file on disk"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where to run; auto: cuda if present")
    dtype: Literal["auto", "bfloat16", "float32"] = setting(
        "auto", "weights and activations; auto: bfloat16 on cuda, float32 on cpu"
    )
    max_prompt_tokens: int | None = setting(
        None, "longest prompt accepted; without it, the checkpoint's own limit", unit="tokens"
    )
    max_batch_tokens: int = setting(16_384, "most unique tokens in one forward pass", unit="tokens")
    gpu_memory_fraction: float = setting(
        0.9, "share of the device's memory that weights and buffers may take"
    )
    graphs: bool = setting(True, "capture one CUDA graph per bucket before serving")
    self_check: bool = setting(True, "prove at load that the device computes rows exactly")
    allow_inexact: bool = setting(
        False, "run on a device that fails the self-check; answers may then depend on the batch"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Who may ask what, how much, and for how long."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one")
    api_key: tuple[str, ...] = setting((), "accepted key; give it again for more keys", secret=True)
    api_key_file: str | None = setting(None, "file with one accepted key a line")
    insecure: bool = setting(False, "allow a public address without a key")
    cors_origin: tuple[str, ...] = setting(
        (), "web origin allowed to call the service; give it again for more"
    )
    metadata_key: str = setting("x_metadata", "name of the response's metadata object")
    max_body_bytes: int = setting(4 << 20, "largest request body, once decompressed", unit="bytes")
    max_questions: int = setting(4096, "most questions in a request")
    max_candidates: int = setting(65_536, "most candidates in a request, over all questions")
    body_timeout_ms: int = setting(
        10_000, "longest wait for a whole request body", unit="milliseconds"
    )
    deadline_ms: int | None = setting(
        None, "deadline of a request that names none of its own", unit="milliseconds"
    )
    max_queue_jobs: int = setting(1024, "most requests waiting for the engine")
    max_queue_tokens: int = setting(
        4_194_304, "most prompt tokens waiting for the engine", unit="tokens"
    )
    share_across_requests: bool = setting(True, "let requests of one batch share equal prefixes")
    watchdog_ms: int = setting(
        120_000, "longest forward pass before the engine counts as hung", unit="milliseconds"
    )
    ready_grace_ms: int = setting(
        1_000, "on SIGTERM, serve on this long after readiness turns 503", unit="milliseconds"
    )
    drain_ms: int = setting(
        30_000, "on SIGTERM, longest wait for accepted requests", unit="milliseconds"
    )
    log_format: Literal["text", "json"] = setting("text", "shape of a log line on stderr")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "least log level")


SECTIONS: dict[str, type[EngineConfig] | type[ServiceConfig]] = {
    "engine": EngineConfig,
    "service": ServiceConfig,
}
"""Table of a configuration file -> its settings. Names are unique over all sections."""
