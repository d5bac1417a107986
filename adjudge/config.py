"""Every setting, once: its type, default, bounds, unit and help. Nothing else holds a default.

A setting is a field of one of these frozen dataclasses. Its flag, environment variable, file
entry and help line follow from the field (see `origins`), so a new setting is one new field.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from adjudge.errors import ConfigError

T = TypeVar("T")

AdapterMode = Literal["auto", "merged", "unmerged"]
"""What becomes of a LoRA: folded into the weights at load, or kept apart as an FP32 branch. `auto`
is what the family's own reference does."""


def setting(
    default: T,
    text: str,
    *,
    unit: str | None = None,
    least: float | None = None,
    most: float | None = None,
    secret: bool = False,
) -> T:
    """A field with its help text, the bounds of a number, and whether it must stay unprinted."""
    made: T = field(
        default=default,
        metadata={"help": text, "unit": unit, "least": least, "most": most, "secret": secret},
    )
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What is loaded, and how it runs. Raises ConfigError for a value out of bounds."""

    model: str | None = setting(None, "model folder; without one, a demo checkpoint is made")
    base: str | None = setting(None, "folder of the base model, for a package of adapter and head")
    adapter: AdapterMode = setting(  # noqa: RUF009 -- of strings, as good as a Literal
        "auto",
        "fold a LoRA into the weights at load, or keep it as an fp32 branch; auto: as the family's "
        "authors do",
    )
    random: Literal["0.8b", "2b", "4b", "9b", "27b"] | None = setting(
        None, "random weights of this released geometry, without a file on disk"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where to run; auto: cuda if present")
    dtype: Literal["auto", "bfloat16", "float32"] = setting(
        "auto", "weights and activations; auto: bfloat16 on cuda, float32 on cpu"
    )
    max_prompt_tokens: int | None = setting(
        None,
        "longest prompt accepted; without it, the checkpoint's own limit",
        unit="tokens",
        least=1,
    )
    max_batch_tokens: int = setting(
        16_384, "most unique tokens in one forward pass", unit="tokens", least=64
    )
    gpu_memory_fraction: float = setting(
        0.9, "share of a GPU's memory that weights and buffers may take", least=0.05, most=1
    )
    prefix_cache_mib: int = setting(
        0,
        "device memory for states of prefixes, kept for later requests; 0 keeps none",
        unit="MiB",
        least=0,
    )
    graphs: bool = setting(True, "capture one CUDA graph per bucket before serving")
    self_check: bool = setting(True, "prove at load that the device computes rows exactly")
    allow_inexact: bool = setting(
        False, "run on a device that fails the self-check; answers may then depend on the batch"
    )

    def __post_init__(self) -> None:
        check(self)


ANSWER_FIELDS = ("model", "answers", "usage")
"""Fields of an answer that its metadata must not take the place of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Who may ask what, how much, and for how long. Raises ConfigError as EngineConfig does."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one", least=0, most=65_535)
    api_key: tuple[str, ...] = setting((), "accepted key; give it again for more keys", secret=True)
    api_key_file: str | None = setting(None, "file with one accepted key a line")
    insecure: bool = setting(False, "allow a public address without a key")
    cors_origin: tuple[str, ...] = setting(
        (), "web origin allowed to call the service; give it again for more"
    )
    metadata_key: str = setting("x_metadata", "name of the response's metadata object")
    max_body_bytes: int | None = setting(
        None,
        "largest request body, once decompressed, for every model; without it, the limit of each "
        "model's family",
        unit="bytes",
        least=1024,
    )
    max_questions: int = setting(4096, "most questions in a request", least=1)
    max_candidates: int = setting(
        65_536, "most candidates in a request, over all questions", least=1
    )
    head_timeout_ms: int = setting(
        30_000,
        "longest wait for a request's whole head, from the connection or the head's first byte",
        unit="ms",
        least=1,
    )
    body_timeout_ms: int = setting(
        10_000, "longest wait for a whole request body", unit="ms", least=1
    )
    deadline_ms: int | None = setting(
        None, "deadline of a request that names none of its own", unit="ms", least=1
    )
    max_queue_jobs: int = setting(
        1024, "most requests being prepared or waiting for the engine", least=1
    )
    max_queue_tokens: int = setting(
        4 << 20, "most unique tokens waiting for the engine", unit="tokens", least=1
    )
    max_requests_per_s: float | None = setting(
        None, "most POSTs a second of one key, or of one address where no key is set", least=0.01
    )
    share_across_requests: bool = setting(True, "let requests of one batch share equal prefixes")
    watchdog_ms: int = setting(
        120_000, "longest forward pass before the engine counts as hung", unit="ms", least=1
    )
    ready_grace_ms: int = setting(
        1_000, "on SIGTERM, serve on this long after readiness turns 503", unit="ms", least=0
    )
    drain_ms: int = setting(
        30_000, "on SIGTERM, longest wait for accepted requests", unit="ms", least=0
    )
    tracing: bool = setting(
        False, "send OpenTelemetry spans (extra otel), to where the OTEL_ variables say"
    )
    log_format: Literal["text", "json"] = setting("text", "shape of a log line on stderr")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "least log level")

    def __post_init__(self) -> None:
        check(self)
        if not self.metadata_key or self.metadata_key in ANSWER_FIELDS:
            raise ConfigError(
                f"metadata_key is {self.metadata_key!r}; it takes a name of its own, such as "
                f"x_metadata, beside an answer's {', '.join(ANSWER_FIELDS)}"
            )


AnyConfig = EngineConfig | ServiceConfig

SECTIONS: dict[str, type[AnyConfig]] = {"engine": EngineConfig, "service": ServiceConfig}
"""Table of a configuration file -> its settings. Names are unique over all sections."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A setting's type, taken apart. word: bool, int, float or str; choices: of a Literal."""

    word: type[Any]
    optional: bool = False
    many: bool = False
    choices: tuple[str, ...] = ()


def kinds(section: type[AnyConfig]) -> dict[str, Kind]:
    """The kinds of a section's settings, in order."""
    return _KINDS[section]


def _kind(hint: Any) -> Kind:
    if get_origin(hint) is tuple:
        return Kind(str, many=True)
    if get_origin(hint) is Literal:
        return Kind(str, choices=get_args(hint))
    if get_args(hint):
        inner = _kind(next(part for part in get_args(hint) if part is not type(None)))
        return Kind(inner.word, optional=True, choices=inner.choices)
    return Kind(hint)


_KINDS = {
    section: {name: _kind(hint) for name, hint in get_type_hints(section).items()}
    for section in SECTIONS.values()
}


def check(config: AnyConfig) -> None:
    """Raise ConfigError at the first value of the wrong type, choice or size."""
    for item in fields(config):
        check_value(type(config), item.name, getattr(config, item.name))


def check_value(section: type[AnyConfig], name: str, value: Any) -> None:
    """Raise ConfigError when the setting cannot have this value."""
    kind, bounds = kinds(section)[name], section.__dataclass_fields__[name].metadata
    if value is None and kind.optional:
        return
    if kind.many and not isinstance(value, tuple):
        shown = "one value" if bounds["secret"] else repr(value)
        raise ConfigError(f"{name} is {shown}; it takes a list")
    for part in value if kind.many else (value,):
        accepted = (int, float) if kind.word is float else kind.word
        if not isinstance(part, accepted) or (kind.word is not bool and isinstance(part, bool)):
            shown = "of another type" if bounds["secret"] else repr(part)
            raise ConfigError(f"{name} is {shown}; it takes a value of type {kind.word.__name__}")
        if kind.choices and part not in kind.choices:
            raise ConfigError(f"{name} is {part!r}; it takes one of {', '.join(kind.choices)}")
        if isinstance(part, float) and not isfinite(part):
            raise ConfigError(f"{name} is {part}; it takes a finite number")
        if bounds["least"] is not None and part < bounds["least"]:
            raise ConfigError(f"{name} is {part}; it takes {bounds['least']} or more")
        if bounds["most"] is not None and part > bounds["most"]:
            raise ConfigError(f"{name} is {part}; it takes {bounds['most']} or less")


def is_key(text: str) -> bool:
    """Whether a header can carry it as a key: printable ASCII characters without spaces."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
