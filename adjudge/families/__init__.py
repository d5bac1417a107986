"""Model families: what a family's request turns into, and what its logits mean.

A family is one file with one class, and one row in FAMILIES. It compiles a request into prompts
and readouts (step 2 of the path) and turns logits into a typed answer (step 9). It knows prompt
bytes, labels, limits and calibration; it never sees a tensor or a device.

    family = family_for(card, tokenizer)
    request --compile--> Compiled (prompts and readouts) … logits --answer--> Response
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from adjudge.families.about import About

if TYPE_CHECKING:
    import numpy as np

    from adjudge.wire import Request, Response

Segment = str | tuple[int, ...]
"""A piece of a prompt: text to be tokenised on its own, or token ids as they are."""


@dataclass(frozen=True, slots=True)
class Readout:
    """What is read at a prompt's last token.

    label_ids: None for the checkpoint's scoring head (one logit per prompt); otherwise the
    vocabulary rows whose logits are wanted, in order (`len(label_ids)` logits).
    rounded: each logit is rounded once to the model's dtype, as its own LM head would give it;
    otherwise logits stay FP32.
    mass: one more number after the logits, the log-sum-exp of the whole vocabulary's.
    """

    label_ids: tuple[int, ...] | None = None
    rounded: bool = False
    mass: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sequence to read: its segments in order, and its readout.

    Segments are cut where cutting cannot change the tokens: the concatenation of the segments'
    token ids equals the ids of the whole text, or is by definition the family's prompt. Equal
    strings are tokenised once per request. num_state_segments: the first ones, up to the end of
    the state: what other questions about it begin with too.
    """

    segments: tuple[Segment, ...]
    readout: Readout
    question: str
    num_state_segments: int = 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request, compiled: its prompts, and for each question its slice of them.

    questions: name -> range of indices into `prompts`, in request order.
    context: whatever the family needs again to answer (the request itself, cut texts, …).
    """

    request: Request
    prompts: tuple[Prompt, ...]
    questions: Mapping[str, range]
    context: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a family accepts; the service's own limits apply on top. Counts, bytes, tokens.

    answers: the question types it answers; aliases: whether its requests may use the spellings
    of wire/aliases.py; max_candidates counts options and levels, and 1 for a noul.
    """

    answers: tuple[str, ...] = ("noul", "choice", "score")
    aliases: bool = False
    max_prompt_tokens: int = 4096
    max_questions: int = 4096
    max_candidates: int = 65_536
    min_options: int = 1
    max_options: int = 255
    min_levels: int = 1
    max_levels: int = 10
    max_prompts: int | None = None
    max_request_tokens: int | None = None
    max_body_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a loaded checkpoint says of itself: everything a family needs besides weights.

    name: the name answered in `model`; aliases: further accepted request names;
    calibration: the family's own numbers (temperatures, biases, label ids), read by the loader.
    """

    name: str
    family: str
    aliases: tuple[str, ...] = ()
    base: str | None = None
    base_revision: str | None = None
    revision: str | None = None
    max_prompt_tokens: int = 4096
    random_weights: bool = False
    calibration: Mapping[str, Any] = field(default_factory=dict)


class Encoder(Protocol):
    """What a family may ask of the checkpoint's tokenizer."""

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text: int32 [num_tokens]."""
        ...


class Family(Protocol):
    """The contract of a family. An instance belongs to one loaded checkpoint.

    names: what a request's `model` may say of it, its own name first; a server of several routes
    by them.
    """

    about: ClassVar[About]
    card: ModelCard
    limits: Limits
    names: Sequence[str]

    @classmethod
    def build(cls, card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> Family:
        """The family on a checkpoint, under its own limits unless others are given. Checks the
        card's calibration and every label against the tokenizer. Raises CheckpointError."""
        ...

    @classmethod
    def limits_for(cls, card: ModelCard) -> Limits:
        """The family's limits for a checkpoint, before any setting narrows or widens them."""
        ...

    def compile(self, request: Request) -> Compiled:
        """Prompts and readouts of a request. Raises InvalidRequest / UsageError."""
        ...

    def answer(
        self,
        compiled: Compiled,
        logits: Sequence[np.ndarray],
        prompt_tokens: Sequence[int],
        metadata: Mapping[str, Any],
    ) -> Response:
        """Typed answers. logits[i]: float32 [number of logits of prompt i]; prompt_tokens[i]:
        its unpadded token count; metadata: run facts that the engine adds (seconds, cache)."""
        ...


FAMILIES: dict[str, str] = {
    "open_jev": "adjudge.families.open_jev:OpenJev",
    "cua_s1": "adjudge.families.cua_s1:CuaS1",
    "decider": "adjudge.families.decider:Decider",
    "jemm": "adjudge.families.jemm:Jemm",
    "jev_vl": "adjudge.families.jev_vl:JevVl",
}


def family_for(card: ModelCard, encoder: Encoder, limits: Limits | None = None) -> Family:
    """The family that `card.family` names, on its checkpoint. Raises KeyError, CheckpointError."""
    found: Family = family_class(card.family).build(card, encoder, limits)
    return found


def family_class(name: str) -> type[Any]:
    """The class behind a row of FAMILIES, imported on first use. Raises KeyError."""
    module, _, attribute = FAMILIES[name].partition(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found
