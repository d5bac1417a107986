"""Noise against the body parser: damaged JSON, frames, multiparts and chunks, for as long as told.

    python bench/fuzz.py [--seconds 60] [--seed 0] [--url http://…]

Without --url a server with the tests' fake engines is started, which gives a body 1 s to arrive.
A finding is a 5xx, no reply within 5 s, or a connection closed without a reply (where the framing
was whole); each is printed with the seed, lane and number that make it again, and the program exits
1. Prints replies by route and status, and one JSON line last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from adjudge.config import ServiceConfig
from adjudge.proof.connection import Connection, Reply, Target
from adjudge.service import serve
from bench.fuzz_cases import BARE, Case, Fuzzer
from tests.fake_engine import CARD, FakeEngine

REPLY_SECONDS = 5.0
CONNECTIONS = 8
BODY_TIMEOUT_MS = 1000

Counts = Counter[tuple[str, int]]


async def send(connection: Connection, case: Case) -> Reply:
    """Send a case's pieces apart, and wait for the reply. Raises OSError."""
    first, *others = case.pieces
    reply = asyncio.ensure_future(connection.send(first, REPLY_SECONDS))
    for piece in others:
        await asyncio.sleep(0)
        connection.add(piece)
    return await reply


async def fuzz(target: Target, seed: int, seconds: float) -> tuple[Counts, list[str]]:
    """(route, status) -> replies, and the findings. Status 0: closed, where that is allowed."""
    counts: Counts = Counter()
    findings: list[str] = []
    end = perf_counter() + seconds

    async def one(lane: int) -> None:
        fuzzer = Fuzzer(seed * CONNECTIONS + lane)
        connection: Connection | None = None
        number = 0
        while perf_counter() < end and len(findings) < 20:
            number += 1
            case = fuzzer.case(target)
            place = f"seed {seed}, lane {lane}, case {number}"
            if connection is None or not connection.is_open:
                connection = await Connection.open(target)
            try:
                reply = await send(connection, case)
            except OSError as error:
                if case.reframed and not isinstance(error, TimeoutError):
                    counts[case.route, 0] += 1
                else:
                    findings.append(f"{place}: {error}")
                connection = None
                continue
            if case.reframed:
                connection.close()
            counts[case.route, reply.status] += 1
            if reply.status >= 500:
                findings.append(f"{place}: {reply.status}")

    await asyncio.gather(*map(one, range(CONNECTIONS)))
    return counts, findings


def serve_fakes() -> int:
    """A server of two families, so that every route is there."""
    bare = replace(CARD, name=BARE, family="jev_vl", aliases=())
    engines = {card.name: FakeEngine(card=card, record=False) for card in (CARD, bare)}
    config = ServiceConfig(
        port=0, ready_grace_ms=0, log_level="error", body_timeout_ms=BODY_TIMEOUT_MS
    )
    return serve(lambda: engines, config)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--url", help="a server that is there already")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve_fakes()
    server = None
    url = arguments.url
    if url is None:
        command = [sys.executable, __file__, "--serve"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout
        url = server.stdout.readline().split()[1]
    counts, findings = Counter(), ["the run did not end"]
    try:
        counts, findings = asyncio.run(fuzz(Target.of(url), arguments.seed, arguments.seconds))
    finally:
        if server is not None:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(60)
            if server.returncode != 0:
                findings.append(f"the server stopped with exit code {server.returncode}")
    for finding in findings:
        print(finding)
    for (route, status), count in sorted(counts.items()):
        print(f"{route:24} {status:4} {count:9}")
    print(
        json.dumps(
            {
                "bench": "fuzz",
                "seconds": arguments.seconds,
                "seed": arguments.seed,
                "replies": counts.total(),
                "findings": len(findings),
            }
        )
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
