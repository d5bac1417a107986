"""Many clients of every kind against one server for a while: nothing may move, hang or grow.

    python bench/soak.py [--seconds 60] [--clients 64] [MODEL …]

Words after the options go to `adjudge serve` (without any: the demo checkpoint). First a fresh
server answers each request alone; then another one is asked by all clients at once, of whom 10 %
leave before their answer, 5 % send something malformed and 2 % something too large. Fails (exit 1)
when an answer differs from the one alone, a bad request gets another status than it should, a
request is left open, memory grows by more than 5 % after the first 10 s, or the server does not
stop cleanly. Prints a table and one JSON line last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from adjudge.proof.connection import Connection, Reply, Target
from adjudge.proof.evidence import build, machine

REPLY_SECONDS = 60.0
SETTLE_SECONDS = 10.0
MOST_GROWTH = 1.05
STOP_SECONDS = 60.0

WORDS = (
    *("the", "refund", "has", "not", "come", "and", "my", "invoice", "for", "March", "was"),
    *("charged", "twice", "so", "please", "help"),
)

MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b"{", 422),
    (b'{"state": null, "questions": {"q": {"type": "noul", "instructions": "i"}}}', 422),
    (b'{"state": "s", "questions": {}}', 422),
    (b'{"state": "\\ud800", "questions": {"q": {"type": "noul", "instructions": "i"}}}', 422),
    (b'{"state": ' + b"[" * 500 + b"]" * 500 + b', "questions": {}}', 422),
    (b'{"state": "s", "questions": {"q": {"type": "noul"}}, "model": "x"}', 422),
    (b'{"state": "", "model": "x", "questions": {"q": {"type": "noul", "instructions": ""}}}', 400),
)  # fmt: skip


def requests(rng: random.Random, count: int) -> list[bytes]:
    """Requests of every shape: states that recur, few and many questions, few and many options."""
    states = [" ".join(rng.choices(WORDS, k=rng.choice((5, 40, 160)))) for _ in range(count // 4)]

    def question() -> dict[str, Any]:
        text = " ".join(rng.choices(WORDS, k=6))
        kind = rng.choice(("noul", "choice", "score"))
        if kind == "noul":
            return {"type": kind, "instructions": text}
        if kind == "score":
            return {"type": kind, "instructions": text, "criteria": rng.sample(WORDS, 4)}
        options = [f"{word} {rng.randrange(1000)}" for word in WORDS[: rng.choice((2, 5, 14))]]
        return {"type": kind, "instructions": text, "criteria": dict.fromkeys(options)}

    return [
        json.dumps(
            {
                "state": rng.choice(states),
                "questions": {f"q{i}": question() for i in range(rng.choice((1, 1, 2, 6)))},
            }
        ).encode()
        for _ in range(count)
    ]


def told(reply: Reply) -> str:
    """What of an answer must be equal wherever and whenever it is asked."""
    body = json.loads(reply.body)
    return json.dumps([body["model"], body["answers"], body["usage"]])


@dataclass(slots=True)
class Watch:
    """What was seen. memory_kib: resident memory by the second; faults: what must not be."""

    counts: Counter[str] = field(default_factory=Counter)
    memory_kib: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        if len(self.faults) < 20:
            self.faults.append(text)
        self.counts["faults"] += 1


@contextmanager
def server(command: Sequence[str], watch: Watch) -> Iterator[tuple[Target, int]]:
    """A server process; its target and process id. Its way to stop is watched too."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    with process, process.stdout:
        word, _, url = process.stdout.readline().strip().partition(" ")
        if word != "ready":
            raise SystemExit(f"soak: the server did not start (exit code {process.wait()})")
        try:
            yield Target.of(url), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            if code := process.wait(STOP_SECONDS):
                watch.fault(f"the server stopped with exit code {code}")


async def alone(target: Target, bodies: Sequence[bytes]) -> dict[bytes, str]:
    """The answer to each request when it is the only one."""
    connection = await Connection.open(target)
    found = {}
    for body in bodies:
        reply = await connection.send(target.message("POST", "/v1/systemone", body), REPLY_SECONDS)
        if reply.status != 200:
            raise SystemExit(f"soak: a request alone was answered with {reply.status}")
        found[body] = told(reply)
    connection.close()
    return found


class Client:
    """One client: asks, leaves, errs, until the time is over."""

    def __init__(
        self, target: Target, wanted: dict[bytes, str], watch: Watch, seed: int, large: bytes
    ) -> None:
        self._target = target
        self._wanted = wanted
        self._bodies = list(wanted)
        self._watch = watch
        self._rng = random.Random(seed)
        self._large = large
        self._connection: Connection | None = None

    async def run(self, end: float) -> None:
        while perf_counter() < end:
            draw = self._rng.random()
            try:
                if draw < 0.10:
                    await self._leave()
                elif draw < 0.15:
                    body, status = self._rng.choice(MALFORMED)
                    await self._expect("malformed", body, status)
                elif draw < 0.17:
                    await self._expect("too large", self._large, 413)
                else:
                    await self._ask(self._rng.choice(self._bodies))
            except OSError as error:
                self._watch.fault(f"a request was left without an answer: {error}")
                self._connection = None
        if self._connection is not None:
            self._connection.close()

    async def _send(self, body: bytes) -> Reply:
        if self._connection is None or not self._connection.is_open:
            self._connection = await Connection.open(self._target)
        message = self._target.message("POST", "/v1/systemone", body)
        return await self._connection.send(message, REPLY_SECONDS)

    async def _ask(self, body: bytes) -> None:
        reply = await self._send(body)
        if reply.status == 529:
            self._watch.counts["overloaded"] += 1
        elif reply.status != 200:
            self._watch.fault(f"a good request was answered with {reply.status}")
        elif told(reply) != self._wanted[body]:
            self._watch.fault("an answer differs from the same request alone")
        else:
            self._watch.counts["equal"] += 1

    async def _expect(self, name: str, body: bytes, status: int) -> None:
        reply = await self._send(body)
        if reply.status not in (status, 529):
            self._watch.fault(f"{name}: answered with {reply.status}, not {status}")
        else:
            self._watch.counts[name] += 1

    async def _leave(self) -> None:
        _, writer = await asyncio.open_connection(self._target.host, self._target.port)
        message = self._target.message("POST", "/v1/systemone", self._rng.choice(self._bodies))
        writer.write(message[: self._rng.choice((len(message), len(message) // 2))])
        await writer.drain()
        await asyncio.sleep(self._rng.choice((0, 0.001, 0.02)))
        writer.close()
        self._watch.counts["left"] += 1


async def soak(
    target: Target, pid: int, wanted: dict[bytes, str], watch: Watch, seconds: float, clients: int
) -> None:
    """All clients at once; then what is left pending, which must be nothing."""
    end = perf_counter() + seconds
    large = b'{"state": "' + b"x" * (5 << 20) + b'"}'
    crowd = [Client(target, wanted, watch, seed, large) for seed in range(clients)]

    async def look() -> None:
        while perf_counter() < end:
            watch.memory_kib.append(resident_kib(pid))
            await asyncio.sleep(1)

    await asyncio.gather(look(), *(client.run(end) for client in crowd))
    connection = await Connection.open(target)
    for _ in range(100):
        reply = await connection.send(target.message("GET", "/health"), REPLY_SECONDS)
        health = json.loads(reply.body)
        if reply.status == 200 and health["pending_requests"] == health["pending_tokens"] == 0:
            break
        await asyncio.sleep(0.05)
    else:
        watch.fault(f"after the last answer the server says {health}")
    connection.close()


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def growth(memory_kib: Sequence[int], settle: float) -> float | None:
    """Highest memory of the last third against the highest by the time it should have settled;
    None for a run too short to tell."""
    settled = memory_kib[: int(settle) + 1]
    late = memory_kib[-(len(memory_kib) // 3) :]
    if len(memory_kib) < 2 * settle:
        return None
    return max(late) / max(settled)


def run(command: Sequence[str], *, seconds: float, clients: int, distinct: int) -> Watch:
    """One soak with servers started by this command."""
    watch = Watch()
    bodies = requests(random.Random(0), distinct)
    with server(command, watch) as (target, _):
        wanted = asyncio.run(alone(target, bodies))
    with server(command, watch) as (target, pid):
        asyncio.run(soak(target, pid, wanted, watch, seconds, clients))
    grown = growth(watch.memory_kib, SETTLE_SECONDS)
    if grown is not None and grown > MOST_GROWTH:
        watch.fault(f"memory grew to {grown:.3f} of what it was after {SETTLE_SECONDS:g} s")
    return watch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--distinct", type=int, default=60, help="different requests")
    parser.add_argument("--fake", action="store_true", help="the tests' fake engine, no model")
    arguments, words = parser.parse_known_args()
    command = [sys.executable, "-m", "adjudge", "serve", *words, "--port", "0"]
    if arguments.fake:
        command = [sys.executable, str(Path(__file__).parent / "serve_null.py"), "--serve"]
    watch = run(
        command, seconds=arguments.seconds, clients=arguments.clients, distinct=arguments.distinct
    )
    grown = growth(watch.memory_kib, SETTLE_SECONDS)
    print(f"{machine().name}, commit {build().commit}, {arguments.clients} clients")
    for name, count in sorted(watch.counts.items()):
        print(f"{name:12} {count:8}")
    print(f"memory       {watch.memory_kib[-1] >> 10:8} MiB, grown {grown or 1:.3f}")
    for fault in watch.faults:
        print(fault, file=sys.stderr)
    result = {"seconds": arguments.seconds, "clients": arguments.clients, "growth": grown}
    print(json.dumps({"bench": "soak", **result, "counts": watch.counts}))
    return 1 if watch.faults else 0


if __name__ == "__main__":
    sys.exit(main())
