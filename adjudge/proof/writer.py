"""Writes questions of given sizes: the tokens that a text adds to an Open-Jev prompt."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from adjudge.proof.prose import Prose, Vocabulary

TEMPLATE_TOKENS: dict[Vocabulary, dict[str, int]] = {
    "qwen": {"noul": 32, "choice": 35, "score": 35},
    "bytes": {"noul": 99, "choice": 113, "score": 113},
}
"""Tokens of an Open-Jev prompt beside its state, instructions and option."""

LEAST_STATE = 8
INSTRUCTIONS = (10, 40)
OPTION = (3, 40)


class Writer:
    """Equal seeds write equal questions."""

    def __init__(self, vocabulary: Vocabulary, rng: random.Random) -> None:
        self._template = TEMPLATE_TOKENS[vocabulary]
        self._rng = rng
        self.prose = Prose(rng, vocabulary)

    def least_prompt_tokens(self, kind: str) -> int:
        """Tokens of the shortest prompt that `request` can write."""
        option = 0 if kind == "noul" else OPTION[0]
        return self._template[kind] + LEAST_STATE + INSTRUCTIONS[0] + option

    def prompt_tokens(self, kind: str, state: int, instructions: int, longest: int) -> int:
        """Tokens of a question's longest prompt."""
        return self._template[kind] + state + instructions + longest

    def request(self, kind: str, count: int, num_tokens: int) -> dict[str, Any]:
        """A request with one question whose longest prompt has num_tokens tokens.

        Instructions of 10–40 tokens and options of 3–40 as far as there is room; the state is
        the rest.
        """
        room = num_tokens - self.least_prompt_tokens(kind)
        instructions = self._rng.randint(
            INSTRUCTIONS[0], min(INSTRUCTIONS[1], INSTRUCTIONS[0] + room // 3)
        )
        longest = 0
        if kind != "noul":
            room -= instructions - INSTRUCTIONS[0]
            longest = self._rng.randint(OPTION[0], min(OPTION[1], OPTION[0] + room // 2))
        state = num_tokens - self.prompt_tokens(kind, 0, instructions, longest)
        return {
            "state": self.prose.state(state),
            "questions": {"question": self.question(kind, count, instructions, longest)},
        }

    def question(
        self, kind: str, count: int, instructions: int, longest: int, shortest: int = OPTION[0]
    ) -> dict[str, Any]:
        """One question; of its `count` options or levels one has `longest` tokens, the others
        from `shortest` up. A noul takes a count of 1."""
        asked = {"type": kind, "instructions": self.prose.question(instructions)}
        if kind == "noul":
            return asked
        sizes = [longest, *(self._rng.randint(shortest, longest) for _ in range(count - 1))]
        self._rng.shuffle(sizes)
        if kind == "score":
            levels: dict[str, None] = {}
            for size in sizes:
                self._add(levels, partial(self._level, size))
            return asked | {"criteria": list(levels)}
        options: dict[str, str | None] = {}
        for size in sizes:
            self._add(options, partial(self._option, size))
        return asked | {"criteria": options}

    def _add(self, found: dict[str, Any], write: Callable[[], tuple[str, Any]]) -> None:
        """Adds what `write` writes, again until its key is a new one."""
        for _ in range(1000):
            key, text = write()
            if key not in found:
                found[key] = text
                return
        raise ValueError(f"no {len(found) + 1} different texts of this size in this vocabulary")

    def _level(self, size: int) -> tuple[str, None]:
        return self.prose.phrase(size), None

    def _option(self, size: int) -> tuple[str, str | None]:
        """A key, and a description for most of the longer ones, together of `size` tokens."""
        least = self.prose.least
        key = self._rng.randint(least, max(least, size // 3))
        described = size - key - 1
        if described < least or self._rng.random() < 0.3:
            return self.prose.phrase(size), None
        return self.prose.phrase(key), self.prose.phrase(described)
