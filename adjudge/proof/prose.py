"""Seeded text of an exact number of tokens, in real English words.

A word's token count does not depend on its neighbours: the models' tokenizer splits text before
every " word" and at punctuation. So the counts of words.tsv add up, and no tokenizer is needed to
write a text of a given length. The same holds for the small checkpoints' vocabulary of bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

Vocabulary = Literal["qwen", "bytes"]
"""Whose tokens are counted: the released models', or bytes (the small checkpoints')."""

_SENTENCE = ("adjective", "noun", "verb", "other", "adjective", "noun")
_SENTENCES_PER_PARAGRAPH = 6


@dataclass(frozen=True, slots=True)
class Word:
    """A word, and its tokens after a space, capitalised after a space, capitalised at the start."""

    text: str
    inner: int
    capital: int
    first: int


@cache
def words(vocabulary: Vocabulary) -> dict[str, tuple[Word, ...]]:
    """The words by kind: noun, verb, adjective, other."""
    by_kind: dict[str, list[Word]] = {}
    table = files("adjudge.proof").joinpath("words.tsv").read_text(encoding="utf-8")
    for line in table.splitlines():
        kind, text, *counts = line.split("\t")
        inner, capital, first = map(int, counts)
        if vocabulary == "bytes":
            first = len(text)
            inner = capital = first + 1
        by_kind.setdefault(kind, []).append(Word(text, inner, capital, first))
    return {kind: tuple(found) for kind, found in by_kind.items()}


@cache
def _fillers(vocabulary: Vocabulary) -> dict[int, tuple[str, ...]]:
    """Tokens of " word" -> the words that have so many."""
    found: dict[int, list[str]] = {}
    for word in (word for kind in words(vocabulary).values() for word in kind):
        found.setdefault(word.inner, []).append(word.text)
    return {cost: tuple(texts) for cost, texts in sorted(found.items())}


class Prose:
    """Writes texts; equal seeds write equal texts. `least`: fewest tokens of a word."""

    def __init__(self, rng: random.Random, vocabulary: Vocabulary) -> None:
        self._rng = rng
        self._words = words(vocabulary)
        self._fillers = _fillers(vocabulary)
        self._break_tokens = 3 if vocabulary == "bytes" else 2
        self.least = min(self._fillers)

    def state(self, num_tokens: int) -> str:
        """Paragraphs of num_tokens tokens that end in a full stop."""
        return self._sentences(num_tokens, ".", spaced=False)

    def question(self, num_tokens: int) -> str:
        """A text of num_tokens tokens, counted with the space that it will follow."""
        return self._sentences(num_tokens, "?", spaced=True)

    def phrase(self, num_tokens: int) -> str:
        """Words of num_tokens tokens, counted with the space that the phrase will follow."""
        return "".join(self._fill(num_tokens)).removeprefix(" ")

    def _sentences(self, num_tokens: int, end: str, *, spaced: bool) -> str:
        left = num_tokens - len(end)
        opening = [
            word
            for kind in self._words.values()
            for word in kind
            if self._fits(left - (word.capital if spaced else word.first))
        ]
        if not opening:
            raise ValueError(f"no text of {num_tokens} tokens in this vocabulary")
        word = self._rng.choice(opening)
        left -= word.capital if spaced else word.first
        parts = [word.text.capitalize()]
        reserve = 2 * max(self._fillers) + self.least
        for text, cost in self._stream():
            if left - cost < reserve:
                break
            parts.append(text)
            left -= cost
        return "".join([*parts, *self._fill(left), end])

    def _stream(self) -> Iterator[tuple[str, int]]:
        """Pieces of sentences without end, each with its tokens."""
        sentence = 0
        while True:
            for kind in _SENTENCE:
                word = self._rng.choice(self._words[kind])
                yield f" {word.text}", word.inner
            sentence += 1
            word = self._rng.choice(self._words["other"])
            if sentence % _SENTENCES_PER_PARAGRAPH:
                yield f". {word.text.capitalize()}", 1 + word.capital
            else:
                yield f".\n\n{word.text.capitalize()}", self._break_tokens + word.first

    def _fill(self, left: int) -> list[str]:
        """Words of exactly `left` tokens, each after a space. Raises ValueError if none fit."""
        parts = []
        while left:
            costs = [cost for cost in self._fillers if self._fits(left - cost)]
            if not costs:
                raise ValueError(f"no words of {left} tokens in this vocabulary")
            sizes = [len(self._fillers[cost]) for cost in costs]
            (cost,) = self._rng.choices(costs, sizes)
            parts.append(f" {self._rng.choice(self._fillers[cost])}")
            left -= cost
        return parts

    def _fits(self, left: int) -> bool:
        return left == 0 or left >= self.least
