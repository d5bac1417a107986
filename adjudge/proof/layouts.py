"""Synthetic layouts: prompts of random token ids that share a prefix, or share nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from adjudge.engine_door import TokenIds
from adjudge.errors import ConfigError

_SPELLING = re.compile(r"(?:(\d+)\+)?(\d+)x(\d+)")


@dataclass(frozen=True, slots=True)
class Shared:
    """`count` prompts: `prefix` tokens that all share, then `tail` tokens each."""

    prefix: int
    tail: int
    count: int

    @classmethod
    def of(cls, text: str) -> Shared:
        """From "prefix+tailxcount", or "tailxcount" without a shared prefix. Raises ConfigError."""
        plain = text.replace(",", "").replace(" ", "").replace("×", "x").lower()
        found = _SPELLING.fullmatch(plain)
        prefix, tail, count = (0, 0, 0) if found is None else (int(n or 0) for n in found.groups())
        if not tail or not count:
            raise ConfigError(
                f"the layout is {text!r}; it takes PREFIX+TAILxCOUNT or TAILxCOUNT, with a tail "
                "and a count of 1 or more, for example 1024+38x32"
            )
        return cls(prefix, tail, count)

    @property
    def spelling(self) -> str:
        """What `of` reads."""
        return (f"{self.prefix}+" if self.prefix else "") + f"{self.tail}x{self.count}"

    @property
    def name(self) -> str:
        start = f"{self.prefix:,} + " if self.prefix else ""
        return f"{start}{self.tail:,} × {self.count}"

    @property
    def unique_tokens(self) -> int:
        return self.prefix + self.tail * self.count

    @property
    def prompt_tokens(self) -> int:
        return (self.prefix + self.tail) * self.count

    def prompts(self, vocab_size: int, seed: int) -> list[TokenIds]:
        """int32 [prefix + tail] for each prompt; no two tails start with the same token.

        Raises ConfigError for more prompts than there are tokens.
        """
        if self.count > vocab_size:
            raise ConfigError(
                f"the layout {self.name} has more prompts than the vocabulary has tokens for them "
                f"to begin with, {vocab_size:,}; ask for fewer"
            )
        rng = np.random.default_rng(seed)
        prefix = rng.integers(0, vocab_size, self.prefix)
        tails = rng.integers(0, vocab_size, (self.count, self.tail))
        tails[:, 0] = rng.choice(vocab_size, self.count, replace=False)
        return [np.concatenate([prefix, tail]).astype(np.int32) for tail in tails]


_SPELLED = "64x1 128x1 512x1 2048x1 4096x1 128x5 256x16 100+28x5 512+38x8 1024+38x32 256+38x255"

LAYOUTS = tuple(map(Shared.of, [*_SPELLED.split(), "3072+38x255"]))
