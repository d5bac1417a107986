"""A job: one request's prompts on their way through the engine, and its single outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adjudge.engine_door import Logits, TokenIds
from adjudge.errors import AdjudgeError, RequestError
from adjudge.forest import common_prefix, count_rows

if TYPE_CHECKING:
    from adjudge.engine_door import Door, Work

PROMPT_TOKENS_PER_ROW = 64
"""In admission, this many prompt tokens (4 bytes each, held until the answer) weigh one row."""


class Cancelled(RequestError):
    """Nobody waits for the job any more; never sent to anyone."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that ran. Seconds: queue until the first dispatch, run summed over its passes.

    logits: float32 arrays, one for each prompt of the job's work, in order; hit_tokens: the longest
    beginning of a prompt that was read from a kept state.
    """

    logits: list[Logits]
    queue_seconds: float
    run_seconds: float
    num_passes: int
    hit_tokens: int = 0


Outcome = Ran | AdjudgeError


@dataclass(slots=True, eq=False)
class Job:
    """State of one job. Only the scheduler writes to it, under its lock.

    deadline: on the scheduler's clock, in seconds; on_resolved: called once, outside the lock,
    from whichever thread resolved the job, and must not block.
    counted: weight that admission counts for it now. `door` and what follows is there once the
    job is submitted: rows are the unique tokens of the job alone; new_rows, for a job larger than
    one pass, the tokens of each prompt past its common prefix with the prompt before it.
    """

    on_resolved: Callable[[Job], None]
    deadline: float | None = None
    outcome: Outcome | None = None
    counted: int = 0
    door: Door = field(init=False)
    work: Work = field(init=False)
    rows: int = 0
    new_rows: list[int] = field(default_factory=list)
    submitted: float = 0.0
    dispatched: float = 0.0
    run_seconds: float = 0.0
    num_passes: int = 0
    hit_tokens: int = 0
    next_prompt: int = 0
    logits: list[Logits] = field(default_factory=list)

    def attach(self, door: Door, work: Work) -> None:
        """Take the work and measure it. Runs in the submitting thread, outside the lock."""
        self.door, self.work = door, work
        prompts = work.token_ids
        self.rows = len(prompts[0]) if len(prompts) == 1 else count_rows(prompts)
        if self.rows > door.max_rows:
            self.new_rows = _new_rows(work.token_ids)

    @property
    def weight(self) -> int:
        """What the job counts for in admission, in rows."""
        return self.rows + self.work.prompt_tokens // PROMPT_TOKENS_PER_ROW

    @property
    def num_prompts(self) -> int:
        return len(self.work.token_ids)

    @property
    def is_large(self) -> bool:
        """Whether the job takes more than one pass."""
        return bool(self.new_rows)


def _new_rows(prompts: Sequence[TokenIds]) -> list[int]:
    found = [len(prompts[0])]
    for place in range(1, len(prompts)):
        before, ids = prompts[place - 1], prompts[place]
        found.append(len(ids) - common_prefix(before, ids, 0))
    return found
