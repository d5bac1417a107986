"""Load on a server: closed loop at a concurrency, or open loop at a rate.

The clock of a request runs from sending it to its parsed, validated answer. In an open loop it
starts when the request was due, so a server that falls behind cannot hide it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from adjudge.progress import Progress
from adjudge.proof.answers import AnswerCheck, Checked, WrongAnswer
from adjudge.proof.connection import Connection, Target
from adjudge.proof.workloads import Case

TURNED_AWAY = (429, 529)
"""What a server answers when it is full."""

SHOWN_BODY_BYTES = 300


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of a pass. start_ms: since the pass began; checked: the answer, if it was right;
    fault: else what was wrong; wrong: there was an answer, and it cannot be right; turned_away:
    the server was full and said so; timing: the server-timing header."""

    case: int
    start_ms: float
    latency_ms: float
    checked: Checked | None = None
    fault: str | None = None
    wrong: bool = False
    turned_away: bool = False
    timing: bytes = b""


@dataclass(frozen=True, slots=True)
class Mode:
    """How a pass loads the server: so many requests at all times, or so many a second."""

    concurrency: int | None = None
    rate_per_s: float | None = None

    @property
    def name(self) -> str:
        if self.rate_per_s is None:
            return f"closed loop, {self.concurrency}"
        return f"open loop, {self.rate_per_s:g}/s"


class Load:
    """Sends cases to one server and checks what comes back."""

    def __init__(
        self,
        target: Target,
        cases: Sequence[Case],
        check: AnswerCheck,
        *,
        path: str,
        timeout_s: float,
        progress: Progress,
    ) -> None:
        self.target = target
        self.cases = cases
        self.progress = progress
        self._messages = [target.message("POST", path, case.body) for case in cases]
        self._check = check
        self._timeout_s = timeout_s

    async def run(
        self, mode: Mode, order: Sequence[int], *, name: str | None = None
    ) -> tuple[list[Sample], float]:
        """The cases of `order` (indices, any number of times), under a name for progress.

        Returns samples as they were completed, and the seconds from the first request to the last
        answer. Raises OSError if nobody listens.
        """
        one_pass = _Pass(self, order, mode.name if name is None else name)
        if mode.rate_per_s is None:
            await one_pass.closed(mode.concurrency or 1)
        else:
            await one_pass.open(mode.rate_per_s)
        return one_pass.samples, one_pass.seconds

    async def one(self, connection: Connection, case: int, begin: float, due: float) -> Sample:
        """Sends one case. begin, due: on the clock of time.perf_counter."""
        start_ms = (due - begin) * 1e3
        checked, fault, wrong, turned_away, timing = None, None, False, False, b""
        try:
            reply = await connection.send(self._messages[case], self._timeout_s)
            timing = reply.timing
            if reply.status == 200:
                checked = self._check.check(self.cases[case], reply.body)
            else:
                turned_away = reply.status in TURNED_AWAY
                text = reply.body[:SHOWN_BODY_BYTES].decode(errors="replace")
                fault = f"status {reply.status}: {text}"
        except WrongAnswer as error:
            fault, wrong = str(error), True
        except OSError as error:
            fault = str(error)
        latency_ms = (time.perf_counter() - due) * 1e3
        return Sample(case, start_ms, latency_ms, checked, fault, wrong, turned_away, timing)


class _Pass:
    def __init__(self, load: Load, order: Sequence[int], name: str) -> None:
        self._load = load
        self._name = name
        self._order = order
        self._idle: list[Connection] = []
        self._begin = 0.0
        self.samples: list[Sample] = []
        self.seconds = 0.0

    async def closed(self, concurrency: int) -> None:
        """Each of `concurrency` connections takes the next case when its last is answered."""
        target, pending = self._load.target, iter(self._order)
        count = min(concurrency, len(self._order))
        self._idle = [await Connection.open(target) for _ in range(count)]
        self._begin = time.perf_counter()

        async def work() -> None:
            for case in pending:
                await self._one(case, time.perf_counter())

        await asyncio.gather(*(work() for _ in range(count)))
        self._end()

    async def open(self, rate_per_s: float) -> None:
        """A case every 1/rate seconds, whether or not the ones before are answered."""
        self._idle = [await Connection.open(self._load.target)]
        self._begin = time.perf_counter()
        tasks = []
        for number, case in enumerate(self._order):
            due = self._begin + number / rate_per_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._one(case, due)))
        await asyncio.gather(*tasks)
        self._end()

    async def _one(self, case: int, due: float) -> None:
        connection = self._idle.pop() if self._idle else None
        try:
            if connection is None or not connection.is_open:
                connection = await Connection.open(self._load.target)
            sample = await self._load.one(connection, case, self._begin, due)
            self._idle.append(connection)
        except OSError as error:
            waited_ms = (time.perf_counter() - due) * 1e3
            sample = Sample(case, (due - self._begin) * 1e3, waited_ms, fault=str(error))
        self.samples.append(sample)
        self._load.progress(self._name, len(self.samples), len(self._order))

    def _end(self) -> None:
        self.seconds = time.perf_counter() - self._begin
        for connection in self._idle:
            connection.close()
