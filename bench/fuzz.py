"""Noise against the body parser: damaged JSON, frames and multiparts, for as long as told.

    python bench/fuzz.py [--seconds 60] [--seed 0] [--url http://…]

Without --url a server with the tests' fake engine is started. A finding is a 5xx, no reply within
5 s, or a connection closed without a reply; each is printed with the seed and number that make it
again, and the program exits 1. Prints counts by status and one JSON line last.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import brotli
import zstandard

sys.path.insert(0, str(Path(__file__).parents[1]))

from adjudge.proof.connection import Connection, Target

REPLY_SECONDS = 5.0
CONNECTIONS = 8
ROUTES = ("/v1/systemone", "/v1/systemone/tokens", "/v1/decisions", "/api/alpha/decisions")

CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
}
SCRAPS = (
    *(b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u", b"\\ud800", b"\x00", b"\xff", b"\xed\xa0\x80"),
    *(b"null", b"NaN", b"Infinity", b"-0", b"1e999", b"9" * 5000, b"[" * 300, b'{"a":' * 200),
    *(b"\r\n", b"--B", b"--B--", b"Content-Disposition: form-data; name=\xff", b"%00", b'""'),
    *("é\u0301\u200f🎯".encode(), b"<|im_start|>", b'"state"', b'"questions"', b'"type": "noul"'),
)


class Fuzzer:
    """Makes case after case; the same seed makes the same cases."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def message(self, target: Target) -> bytes:
        """One HTTP request."""
        rng = self._rng
        body, media = self._json(), "application/json"
        if rng.random() < 0.5:
            body = self._damaged(body)
        if rng.random() < 0.3:
            body, media = self._multipart(body)
        coding = rng.choice([*CODINGS, ""]) if rng.random() < 0.5 else ""
        if coding:
            body = CODINGS[coding](body)
            if rng.random() < 0.5:
                body = self._damaged(body)
        if rng.random() < 0.05:
            coding = rng.choice([*CODINGS, "x", "identity"])
        head = [
            f"POST {rng.choice(ROUTES)} HTTP/1.1",
            f"host: {target.authority}",
            f"content-type: {media}",
            f"content-length: {len(body)}",
        ]
        if coding:
            head.append(f"content-encoding: {coding}")
        return "\r\n".join([*head, "", ""]).encode("latin-1") + body

    def _json(self) -> bytes:
        value = self._request()
        for _ in range(self._rng.choice((0, 0, 1, 2, 3))):
            self._change(value)
        return json.dumps(value, ensure_ascii=self._rng.random() < 0.5).encode("utf-8", "replace")

    def _request(self) -> dict[str, Any]:
        question = self._rng.choice(
            (
                {"type": "noul", "instructions": "Is it wet?", "criteria": {"true": "yes"}},
                {"type": "choice", "instructions": ["Which?"], "criteria": {"a": None, "b": {}}},
                {"type": "score", "instructions": {}, "criteria": ["low", ["high"]]},
                {"type": "predicate", "name": "p", "instructions": "Is it wet?"},
                {
                    "type": "choice",
                    "instructions": "",
                    "choices": [{"value": True}, {"value": "b"}],
                },
                {"type": "score", "instructions": [], "levels": [{"label": "a"}, {"label": "b"}]},
            )
        )
        questions: Any = {"q": question, "r": dict(question)}
        if self._rng.random() < 0.4:
            questions = list(questions.values())
        return {"model": "jev-latest", "state": {"a": [1]}, "input": "text", "questions": questions}

    def _change(self, value: Any) -> None:
        """Replace or remove something somewhere inside."""
        rng = self._rng
        while isinstance(value, dict | list) and value:
            key: Any = (
                rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
            )
            if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.7:
                value = value[key]
                continue
            odd = (
                None,
                True,
                0,
                -1,
                1.5,
                10**400,
                "",
                "x" * 3000,
                [],
                {},
                [[[]]],
                {"": {}},
                "\ud800",
            )
            if rng.random() < 0.2:
                del value[key]
            else:
                value[key] = rng.choice(odd)
            return

    def _damaged(self, data: bytes) -> bytes:
        rng = self._rng
        made = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(made) + 1)
            kind = rng.randrange(5)
            if kind == 0:
                made[at:at] = rng.choice(SCRAPS)
            elif kind == 1:
                del made[at : at + rng.randrange(1, 20)]
            elif kind == 2 and made:
                made[at % len(made)] ^= 1 << rng.randrange(8)
            elif kind == 3:
                made += made[at:][:2000]
            else:
                made[at:at] = rng.randbytes(rng.randrange(1, 30))
        return bytes(made)

    def _multipart(self, body: bytes) -> tuple[bytes, str]:
        rng = self._rng
        names = ["request", *(f"asset-{i}" for i in range(rng.randrange(3)))]
        if rng.random() < 0.2:
            rng.shuffle(names)
            names.append(rng.choice(names))
        parts = []
        for name in names:
            content = body if name == "request" else rng.randbytes(40)
            head = f'Content-Disposition: form-data; name="{name}"'
            parts.append(f"--B\r\n{head}\r\n\r\n".encode() + content + b"\r\n")
        made = b"".join(parts) + b"--B--\r\n"
        if rng.random() < 0.4:
            made = self._damaged(made)
        odd = (
            "B",
            '"B"',
            "",
            "C",
            "B; x=y",
            "'B",
            "B" * 80,
            "B;charset=utf-16",
            "B; charset*=x''y",
        )
        boundary = "B" if rng.random() < 0.8 else rng.choice(odd)
        return made, f"multipart/form-data; boundary={boundary}"


async def fuzz(target: Target, seed: int, seconds: float) -> tuple[Counter[int], list[str]]:
    """Status -> replies, and the findings."""
    counts: Counter[int] = Counter()
    findings: list[str] = []
    end = perf_counter() + seconds

    async def one(lane: int) -> None:
        fuzzer = Fuzzer(seed * CONNECTIONS + lane)
        connection: Connection | None = None
        number = 0
        while perf_counter() < end and len(findings) < 20:
            number += 1
            message = fuzzer.message(target)
            if connection is None or not connection.is_open:
                connection = await Connection.open(target)
            try:
                reply = await connection.send(message, REPLY_SECONDS)
            except OSError as error:
                findings.append(f"seed {seed}, lane {lane}, case {number}: {error}")
                connection = None
                continue
            counts[reply.status] += 1
            if reply.status >= 500:
                findings.append(f"seed {seed}, lane {lane}, case {number}: {reply.status}")

    await asyncio.gather(*map(one, range(CONNECTIONS)))
    return counts, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--url", help="a server that is there already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = None
        url = arguments.url
        if url is None:
            script = Path(__file__).parents[1] / "tests" / "fake_server.py"
            command = [sys.executable, str(script), folder, 'log_level="error"']
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert server.stdout
            url = server.stdout.readline().split()[1]
        counts, findings = asyncio.run(fuzz(Target.of(url), arguments.seed, arguments.seconds))
        if server is not None:
            server.terminate()
            if code := server.wait(60):
                findings.append(f"the server stopped with exit code {code}")
    for finding in findings:
        print(finding)
    for status, count in sorted(counts.items()):
        print(f"{status}  {count:9}")
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
