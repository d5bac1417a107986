"""What the service costs by itself: requests over HTTP to an engine that computes nothing.

Run it: python bench/serve_null.py [--seconds 10]. The server runs in a process of its own, on the
same cores as the load. Every answer is compared with the first. Prints the machine, a table and
one JSON line last; exits 1 if an answer differed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from adjudge.checkpoint.vocab import build_tokenizer
from adjudge.config import ServiceConfig
from adjudge.engine_door import Work
from adjudge.proof.connection import Connection, Target
from adjudge.proof.evidence import build, libraries, machine
from adjudge.service import serve
from adjudge.tokenizer import Tokenizer
from adjudge.wire import Request
from tests.fake_engine import FakeEngine

WARM_UP_SECONDS = 1.0
ANSWER_KEYS = ("model", "answers", "usage")


class NullEngine(FakeEngine):
    """The fake engine behind the models' real vocabulary."""

    def __init__(self) -> None:
        super().__init__(record=False)
        self._tokenizer = Tokenizer(build_tokenizer("qwen"))

    def compile(self, request: Request) -> Work:
        compiled = self.family.compile(request)
        return Work(compiled, self._tokenizer.encode_prompts(compiled.prompts))


@dataclass(frozen=True, slots=True)
class Load:
    """name, the request's body, and how many connections send it, one request each at a time.

    per_second: an open loop at this rate over all connections, latencies counted from the moment
    a request was due; None: a closed loop, each connection asks as soon as it has its answer.
    """

    name: str
    body: bytes
    connections: int
    per_second: float | None = None


def noul(size: int) -> bytes:
    """A request of one yes/no question whose body has this many bytes."""

    def body(state: str) -> bytes:
        question = {"type": "noul", "instructions": "Is the customer asking for money back?"}
        return json.dumps({"state": state, "questions": {"refund": question}}).encode()

    words = "I was charged twice for March and the refund has not arrived. "
    missing = size - len(body(""))
    return body((words * (missing // len(words) + 1))[:missing])


async def measure(target: Target, load: Load, seconds: float) -> dict[str, Any]:
    """Requests per second and latencies. Raises ValueError for an answer that is not the first
    one's."""
    message = target.message("POST", "/v1/systemone", load.body)
    connections = [await Connection.open(target) for _ in range(load.connections)]
    wanted = _answer(await connections[0].send(message, 10))
    start = perf_counter()
    begin = start + WARM_UP_SECONDS
    end = begin + seconds
    every = load.connections / load.per_second if load.per_second else 0.0
    times: list[float] = []

    async def ask(place: int) -> None:
        due = start + every * place / load.connections
        while (now := perf_counter()) < end:
            if every:
                await asyncio.sleep(max(0.0, due - now))
            else:
                due = now
            reply = await connections[place].send(message, 10)
            if due >= begin:
                times.append(perf_counter() - due)
            if _answer(reply) != wanted:
                raise ValueError(f"{load.name}: an answer differs from the first")
            due += every

    await asyncio.gather(*map(ask, range(load.connections)))
    for connection in connections:
        connection.close()
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return {
        "requests_per_s": round(len(times) / seconds, 1),
        "p50_ms": round(float(p50), 3),
        "p99_ms": round(float(p99), 3),
        "offered_per_s": load.per_second,
        "body_bytes": len(load.body),
        "connections": load.connections,
    }


def _answer(reply: Any) -> bytes:
    """What of a reply may not change: all but the metadata, whose seconds do."""
    if reply.status != 200:
        raise ValueError(f"a request was answered with {reply.status}")
    body: bytes = reply.body
    return body[: body.index(b'"x_metadata"')]


def report(results: Mapping[str, Mapping[str, Any]]) -> None:
    print(f"{machine().name}, Python {machine().python}, commit {build().commit}, null engine")
    for name, result in results.items():
        print(
            f"{name:32} {result['requests_per_s']:9.1f} req/s  p50 {result['p50_ms']:7.3f} ms  "
            f"p99 {result['p99_ms']:7.3f} ms"
        )
    print(json.dumps({"bench": "serve_null", "results": results, "libraries": libraries()}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(NullEngine, ServiceConfig(port=0, ready_grace_ms=0))
    loads = (
        Load("400 bytes, 64 conn., 1,500/s", noul(400), 64, 1500),
        Load("400 bytes, 64 conn., closed loop", noul(400), 64),
        Load("400 bytes, 1 connection", noul(400), 1),
        Load("1,200 bytes (300 tokens), 1 conn.", noul(1200), 1),
    )
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout
        target = Target.of(server.stdout.readline().split()[1])
        try:
            results = {
                load.name: asyncio.run(measure(target, load, arguments.seconds)) for load in loads
            }
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            server.terminate()
    report(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
