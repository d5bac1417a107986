"""Cases of bench/fuzz.py: requests in every spelling, packing and coding, damaged at any layer."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import brotli
import zstandard

from adjudge.proof.connection import Target

ROUTES = (
    "/v1/systemone",
    "/v1/systemone/tokens",
    "/v1/decisions",
    "/api/alpha/decisions",
    "/v1/decide",
)
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": partial(gzip.compress, mtime=0),
    "deflate": zlib.compress,
    "br": brotli.compress,
}
SCRAPS = (
    *(b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u", b"\\ud800", b"\x00", b"\xff", b"\xed\xa0\x80"),
    *(b"null", b"NaN", b"Infinity", b"-0", b"1e999", b"9" * 5000, b"[" * 300, b'{"a":' * 200),
    *(b"\r\n", b"--B", b"--B--", b"Content-Disposition: form-data; name=\xff", b"%00", b'""'),
    *("é\u0301\u200f🎯".encode(), b"<|im_start|>", b'"state"', b'"questions"', b'"type": "noul"'),
)
ODD_VALUES = (
    *(None, True, 0, -1, 1.5, 10**400, "", "x" * 3000, [], {}, [[[]]], {"": {}}, "\ud800"),
    *("box", "image", "asset-0", "%%%=", "jev-latest"),
)
ODD_BOUNDARIES = (
    *("B", '"B"', "", "C", "B; x=y", "'B", "B" * 80, "B;charset=utf-16", "B; charset*=x''y"),
    *("-", "--", '"B\\"', "B; boundary=C"),
)
ODD_HEADERS = (
    *("x-deadline-ms: 0", "x-deadline-ms: 1", "x-deadline-ms: 1e9", "x-deadline-ms: \xb2"),
    *("x-request-id: \xff", "traceparent: 00-", "authorization: Bearer \xff", "x-api-key: "),
    *("content-encoding: gzip", "content-type: text/plain", "expect: 100-continue", "cookie: \xe9"),
)
NAMED: tuple[dict[str, Any], ...] = (
    {"type": "noul", "instructions": "Is it wet?", "criteria": {"true": "yes"}},
    {"type": "choice", "instructions": ["Which?"], "criteria": {"a": None, "b": {}}},
    {"type": "score", "instructions": {}, "criteria": ["low", ["high"]]},
)
LISTED: tuple[dict[str, Any], ...] = (
    {"type": "predicate", "instructions": "Is it wet?"},
    {"type": "choice", "instructions": "", "choices": [{"value": True}, {"value": "b"}]},
    {"type": "score", "instructions": [], "levels": [{"label": "a"}, {"label": "b"}]},
)
BARE = "fake/jev-vl"
DECIDE: dict[str, Any] = {
    "model": BARE,
    "state": [{"type": "text", "text": "a"}, "b"],
    "question": "Which?",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One HTTP request. pieces: sent one after the other; reframed: the framing itself may be
    damaged, so the server may close the connection before it was all sent."""

    route: str
    pieces: list[bytes]
    reframed: bool


class Fuzzer:
    """Makes case after case; the same seed makes the same cases."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def case(self, target: Target) -> Case:
        rng = self._rng
        route = rng.choice(ROUTES)
        body, media = self._json(route), "application/json"
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
            coding = rng.choice([*CODINGS, "x", "identity", "gzip, br"])
        head = [
            f"POST {route} HTTP/1.1",
            f"host: {target.authority}",
            f"content-type: {media}",
        ]
        if coding:
            head.append(f"content-encoding: {coding}")
        if rng.random() < 0.1:
            head.append(rng.choice(ODD_HEADERS))
        if rng.random() < 0.3:
            return self._chunked(route, head, body)
        length = len(body)
        short = rng.random() < 0.002
        if short:  # the rest never comes
            length += rng.randrange(1, 50)
        return Case(route, self._cut(_head([*head, f"content-length: {length}"]) + body), short)

    def _chunked(self, route: str, head: list[str], body: bytes) -> Case:
        rng = self._rng
        made = bytearray()
        while body:
            size = rng.choice((1, 3, 50, 400, 4000, len(body)))
            piece, body = body[:size], body[size:]
            made += f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
        made += b"0\r\n\r\n"
        damaged = rng.random() < 0.1
        framed = self._damaged(bytes(made)) if damaged else bytes(made)
        return Case(
            route, self._cut(_head([*head, "transfer-encoding: chunked"]) + framed), damaged
        )

    def _cut(self, message: bytes) -> list[bytes]:
        if self._rng.random() < 0.7:
            return [message]
        places = sorted(self._rng.randrange(len(message)) for _ in range(self._rng.choice((1, 4))))
        edges = [0, *places, len(message)]
        return [message[a:b] for a, b in pairwise(edges) if a < b]

    def _json(self, route: str) -> bytes:
        value = self._decide() if route == "/v1/decide" else self._request(route)
        for _ in range(self._rng.choice((0, 0, 1, 2, 3))):
            self._change(value)
        return json.dumps(value, ensure_ascii=self._rng.random() < 0.5).encode("utf-8", "replace")

    def _decide(self) -> dict[str, Any]:
        kind = self._rng.choice(("noul", "score", "choice"))
        return deepcopy({"kind": kind, "options": ["a", "b"], **DECIDE})

    def _request(self, route: str) -> dict[str, Any]:
        rng = self._rng
        kinds = LISTED if (route == "/v1/decisions") != (rng.random() < 0.1) else NAMED
        questions: Any = {"q": rng.choice(kinds), "r": rng.choice(kinds)}
        if (kinds is LISTED) != (rng.random() < 0.1):
            questions = list(questions.values())
        value = {"state": {"a": [1]}, "input": "text", "questions": questions}
        if rng.random() < 0.5:
            value["model"] = "jev-latest"
        if rng.random() < 0.2:
            value["input"] = [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]
        if rng.random() < 0.3:
            data = base64.b64encode(rng.randbytes(rng.randrange(40))).decode()
            value["assets"] = {
                "x": {"type": "image", "part": "asset-0"},
                "y": {"type": "image", "data_base64": data, "format": "png"},
            }
        return deepcopy(value)

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
            if rng.random() < 0.2:
                del value[key]
            else:
                value[key] = deepcopy(rng.choice(ODD_VALUES))
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

    def _multipart(self, body: bytes, depth: int = 0) -> tuple[bytes, str]:
        rng = self._rng
        names = ["request", *(f"asset-{i}" for i in range(rng.randrange(3)))]
        if rng.random() < 0.2:
            rng.shuffle(names)
            names.append(rng.choice(names))
        mark = rng.choice(("B", "B", "C")) if depth else "B"
        parts = []
        for name in names:
            content = body if name == "request" else rng.randbytes(40)
            head = f'Content-Disposition: form-data; name="{name}"; filename="{name}.png"'
            if depth < 2 and rng.random() < 0.05:
                content, kind = self._multipart(content, depth + 1)
                head += f"\r\nContent-Type: {kind}"
            if rng.random() < 0.1:
                head += "\r\nContent-Transfer-Encoding: base64"
            parts.append(f"--{mark}\r\n{head}\r\n\r\n".encode() + content + b"\r\n")
        made = b"".join(parts) + f"--{mark}--\r\n".encode()
        if rng.random() < 0.4:
            made = self._damaged(made)
        boundary = mark if rng.random() < 0.8 else rng.choice(ODD_BOUNDARIES)
        return made, f"multipart/form-data; boundary={boundary}"


def _head(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
