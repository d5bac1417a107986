"""Which waiting jobs make up the next pass. Pure functions over a snapshot of the queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adjudge.engine_door import Item, TokenIds
from adjudge.forest import common_prefix

if TYPE_CHECKING:
    from adjudge.engine_door import Door
    from adjudge.scheduler.job import Job


@dataclass(frozen=True, slots=True)
class Part:
    """Prompts [first, stop) of a job."""

    job: Job
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The parts of one pass, all of one engine; large: its first part is of a split job."""

    door: Door
    parts: tuple[Part, ...]
    large: bool

    def items(self, *, share: bool) -> list[Item]:
        """The pass's prompts, part by part. share: whether parts may share rows."""
        found: list[Item] = []
        for scope, part in enumerate(self.parts):
            found += part.job.work.items(part.first, part.stop, scope=0 if share else scope)
        return found

    def alone(self) -> list[Batch]:
        """One batch for each part."""
        return [Batch(self.door, (part,), self.large) for part in self.parts]


def choose(
    small: Sequence[Job], large: Sequence[Job], *, last_was_large: bool, share: bool
) -> Batch | None:
    """The next pass. small, large: waiting jobs, oldest first.

    While both wait, passes alternate. The last part of a large job leaves room, which small jobs
    fill. Among the jobs of one engine the order is strictly first in, first out: the first that
    does not fit ends the batch.
    """
    if large and not (small and last_was_large):
        job = large[0]
        part, rows = _next_part(job)
        paths = _Paths(job.work.token_ids[part.first]) if share else None
        more = _fill(job.door, small, rows, paths)
        return Batch(job.door, (part, *more), large=True)
    if not small:
        return None
    door = small[0].door
    return Batch(door, _fill(door, small, 0, _Paths() if share else None), large=False)


def _next_part(job: Job) -> tuple[Part, int]:
    """As many of the job's next prompts as fit one pass, at least one, and their rows."""
    first = job.next_prompt
    rows = len(job.work.token_ids[first])
    stop = first + 1
    while stop < job.num_prompts and rows + job.new_rows[stop] <= job.door.max_rows:
        rows += job.new_rows[stop]
        stop += 1
    return Part(job, first, stop), rows


def _fill(door: Door, waiting: Sequence[Job], rows: int, paths: _Paths | None) -> tuple[Part, ...]:
    """The engine's oldest waiting jobs that surely fit beside `rows` rows that hold `paths`.

    Rows of a union are at most the sum less what the jobs' first prompts share, which is exact
    where jobs share a state. That is worked out only once the plain sum does not fit.
    """
    taken: list[Job] = []
    compared = 0
    for job in waiting:
        if job.door is not door:
            continue
        if rows + job.rows > door.max_rows:
            if paths is None:
                break
            for earlier in taken[compared:]:
                rows -= paths.add(earlier.work.token_ids[0])
            compared = len(taken)
            if rows + job.rows - paths.shared(job.work.token_ids[0]) > door.max_rows:
                break
        rows += job.rows
        taken.append(job)
    return tuple(Part(job, 0, job.num_prompts) for job in taken)


class _Paths:
    """Prompts in lexicographic order, to find how much of another one they already hold."""

    def __init__(self, *paths: TokenIds) -> None:
        self._keys: list[bytes] = []
        self._paths: list[TokenIds] = []
        for path in paths:
            self.add(path)

    def shared(self, path: TokenIds) -> int:
        """Length of the longest common prefix with any prompt held: a neighbour's."""
        return self._neighbours(path, _key(path))[1]

    def add(self, path: TokenIds) -> int:
        """Hold the prompt as well; what it shared with those held before."""
        key = _key(path)
        place, shared = self._neighbours(path, key)
        self._keys.insert(place, key)
        self._paths.insert(place, path)
        return shared

    def _neighbours(self, path: TokenIds, key: bytes) -> tuple[int, int]:
        place = bisect_left(self._keys, key)
        near = self._paths[max(0, place - 1) : place + 1]
        return place, max((common_prefix(path, other, 0) for other in near), default=0)


def _key(path: TokenIds) -> bytes:
    return np.asarray(path).astype(">u4").tobytes()
