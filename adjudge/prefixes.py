"""Which prefixes have kept states: an index of token ids under a budget of bytes.

Integers only: what is kept for a prefix is a number of bytes and an opaque `state`. An entry is
found by its salt and *all* its token ids (a dict compares them after the hash). Entries of
different salts never meet. The least recently used entry goes first, and never one that the
running pass reads.

Two places are worth an entry: the end of a request's state, which the next questions about it will
begin with too (see engine_door.Work), and where a prompt parts from an entry, since two prompts
have begun with that text already.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adjudge.engine_door import TokenIds
from adjudge.forest import CHUNK, common_prefix

Salt = str | None


@dataclass(slots=True, eq=False)
class Kept:
    """A prefix whose state is kept: a multiple of 64 tokens under one salt.

    path: its token ids, four big-endian bytes each, so that bytes sort as tokens do;
    num_bytes: what `state` takes; state: the device's part, None once evicted.
    """

    salt: Salt
    path: bytes
    num_bytes: int
    state: Any

    @property
    def num_tokens(self) -> int:
        return len(self.path) // 4


@dataclass(frozen=True, slots=True)
class Found:
    """What the index knows of a prompt's beginning.

    kept: the longest entry that the prompt begins with and is longer than, or None;
    parts_at: tokens, a multiple of 64, that it shares with some entry before they part.
    """

    kept: Kept | None = None
    parts_at: int = 0

    @property
    def num_tokens(self) -> int:
        return 0 if self.kept is None else self.kept.num_tokens


@dataclass(slots=True)
class _Shelf:
    """The entries of one salt: by path, in order of their paths, and their lengths, ascending."""

    kept: dict[bytes, Kept] = field(default_factory=dict)
    paths: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Prefixes:
    """Thread-safe. version: changes whenever an answer of `find` may."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.num_bytes = 0
        self.num_evicted = 0
        self.version = 0
        self._order: OrderedDict[Kept, None] = OrderedDict()
        self._shelves: dict[Salt, _Shelf] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._order)

    def find(self, prompts: Sequence[TokenIds], salts: Sequence[Salt]) -> list[Found]:
        """For each prompt, what is kept of it under its salt."""
        found: list[Found] = []
        with self._lock:
            before: tuple[Salt, TokenIds, bool] | None = None
            for ids, salt in zip(prompts, salts, strict=True):
                shelf = self._shelves.get(salt)
                if shelf is None:
                    found.append(Found())
                    before = None
                    continue
                head = ids[: shelf.lengths[-1]]
                goes_on = len(ids) > len(head)
                # Neighbours of one request begin alike, and looking takes longer than comparing.
                if before is None or before[::2] != (salt, goes_on) or not equal(before[1], head):
                    found.append(_look(shelf, path_of(head, len(head)), goes_on))
                else:
                    found.append(found[-1])
                before = salt, head, goes_on
        return found

    def holds(self, salt: Salt, path: bytes) -> bool:
        """Whether exactly this prefix is kept under this salt."""
        with self._lock:
            shelf = self._shelves.get(salt)
            return shelf is not None and path in shelf.kept

    def use(self, kept: Kept) -> None:
        """The entry was used just now."""
        with self._lock:
            self._order.move_to_end(kept)

    def reserve(self, num_bytes: int, spared: Collection[Kept]) -> bool:
        """Take room for one more entry, evicting others than `spared`. False, and nothing is
        evicted, where that cannot make enough room."""
        with self._lock:
            fixed = sum(kept.num_bytes for kept in spared)
            held = sum(kept.num_bytes for kept in self._order)
            if self.num_bytes - held + fixed + num_bytes > self.budget_bytes:
                return False
            for kept in [*self._order]:
                if self.num_bytes + num_bytes <= self.budget_bytes:
                    break
                if kept not in spared:
                    self._evict(kept)
            self.num_bytes += num_bytes
            return True

    def release(self, num_bytes: int) -> None:
        """Give back room that was reserved and not filled."""
        with self._lock:
            self.num_bytes -= num_bytes

    def add(self, kept: Kept) -> None:
        """Fill reserved room. The prefix must not be held yet."""
        with self._lock:
            shelf = self._shelves.setdefault(kept.salt, _Shelf())
            shelf.kept[kept.path] = kept
            insort(shelf.paths, kept.path)
            insort(shelf.lengths, kept.num_tokens)
            self._order[kept] = None
            self.version += 1

    def clear(self) -> None:
        """Forget everything that is kept, and how much was evicted."""
        with self._lock:
            for kept in [*self._order]:
                self._evict(kept)
            self.num_evicted = 0

    def _evict(self, kept: Kept) -> None:
        del self._order[kept]
        kept.state = None
        self.num_bytes -= kept.num_bytes
        self.num_evicted += 1
        self.version += 1
        shelf = self._shelves[kept.salt]
        del shelf.kept[kept.path]
        del shelf.paths[bisect_left(shelf.paths, kept.path)]
        del shelf.lengths[bisect_left(shelf.lengths, kept.num_tokens)]
        if not shelf.kept:
            del self._shelves[kept.salt]


def path_of(ids: TokenIds, num_tokens: int) -> bytes:
    """The first tokens of a prompt, as an entry's path."""
    return ids[:num_tokens].astype(">u4").tobytes()


def equal(a: TokenIds, b: TokenIds) -> bool:
    """Whether two arrays are the same tokens."""
    return len(a) == len(b) and bool((a == b).all())


def _look(shelf: _Shelf, head: bytes, goes_on: bool) -> Found:
    """head: the prompt's path, cut at the longest entry's length; goes_on: whether it was cut."""
    place = bisect_left(shelf.paths, head)
    tokens = np.frombuffer(head, ">u4")
    near = (np.frombuffer(path, ">u4") for path in shelf.paths[max(0, place - 1) : place + 1])
    shared = max(common_prefix(tokens, path, 0) for path in near)
    most = min(shared, len(tokens) - 1 + goes_on)
    for length in reversed(shelf.lengths[: bisect_left(shelf.lengths, most + 1)]):
        kept = shelf.kept.get(head[: 4 * length])
        if kept is not None:
            return Found(kept, shared - shared % CHUNK)
    return Found(None, shared - shared % CHUNK)
