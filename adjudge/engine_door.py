"""The door between the service and an engine: five verbs, a few records, no torch.

    request --compile--> Work --(scheduler cuts it into items)--> items --prepare--> plan
    plan --run--> Pass --(scheduler puts logits back together)--> logits --answer--> Response

The scheduler and the service know an engine only through `Door`; tests put a fake behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adjudge.forest import CHUNK

if TYPE_CHECKING:
    from adjudge.families import Compiled, Family, ModelCard, Readout
    from adjudge.wire import Request, Response

TokenIds = NDArray[np.int32]
Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Work:
    """A compiled and tokenised request.

    token_ids: int32 [tokens] for each prompt of `compiled.prompts`, in that order; state_tokens:
    how many of each prompt's tokens end with the state, or empty where nobody asks.
    """

    compiled: Compiled
    token_ids: Sequence[TokenIds]
    state_tokens: Sequence[int] = ()

    @property
    def prompt_tokens(self) -> int:
        """Tokens over all prompts, shared prefixes counted each time."""
        return sum(map(len, self.token_ids))

    def items(self, first: int, stop: int, *, scope: int = 0) -> list[Item]:
        """Prompts [first, stop) as items of a pass. What is worth keeping is the state: it is what
        the next questions about it begin with."""
        salt = self.compiled.request.cache_salt
        found = []
        for place in range(first, stop):
            state_tokens = self.state_tokens[place] if self.state_tokens else 0
            readout = self.compiled.prompts[place].readout
            keep_tokens = state_tokens - state_tokens % CHUNK
            found.append(Item(self.token_ids[place], readout, scope, keep_tokens, salt))
        return found


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a pass: int32 [tokens], and what is read at its last token.

    Items may share rows exactly where their scopes are equal. keep_tokens: how many of its first
    tokens are worth a kept state, a multiple of 64; salt: states are kept and found under it.
    """

    token_ids: TokenIds
    readout: Readout
    scope: int = 0
    keep_tokens: int = 0
    salt: str | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """What one forward gave back.

    logits: float32 [readout's number of logits] for each item, in order;
    rows: unique tokens; padded_rows: rows computed, padding included (≥ rows);
    reused_rows: rows taken from states kept from earlier passes, not computed again;
    hit_tokens: of each item, its tokens among these, or empty where no states are kept.
    """

    logits: Sequence[Logits]
    rows: int
    padded_rows: int
    reused_rows: int = 0
    hit_tokens: Sequence[int] = ()


class Door(Protocol):
    """An engine, as its callers see it. `max_rows`: most unique tokens of one pass."""

    @property
    def card(self) -> ModelCard: ...
    @property
    def family(self) -> Family: ...
    @property
    def max_rows(self) -> int: ...

    def compile(self, request: Request) -> Work:
        """Prompts, token ids and limits of a request. Thread-safe, runs nothing.

        Raises RequestError; a prompt longer than `max_rows` is refused here.
        """
        ...

    def prepare(self, items: Sequence[Item]) -> Any:
        """Plan one pass. Thread-safe, touches no device: it may run while a pass does."""
        ...

    def run(self, plan: Any) -> Pass:
        """One forward over a prepared plan. Only ever called from the one worker thread.

        Raises DeviceError when the device is unsound; any other exception fails this pass only.
        """
        ...

    def answer(self, work: Work, logits: Sequence[Logits], metadata: Mapping[str, Any]) -> Response:
        """Typed answers from one logits array per prompt. Thread-safe."""
        ...

    def health(self) -> dict[str, Any]:
        """Facts worth showing (device, dtype, counters). Raises DeviceError if unsound."""
        ...

    def close(self) -> None:
        """Give the device back. Called once, after the last pass."""
        ...
