"""What the measuring itself costs: the same client against a server that does nothing.

Server and client share one event loop and one core here, so the figure holds both sides' work and
is an upper bound of what the client adds to a measured time.
"""

from __future__ import annotations

import asyncio
import statistics

import httptools

from adjudge.proof.answers import AnswerCheck
from adjudge.proof.connection import Target
from adjudge.proof.load import Load, Mode
from adjudge.proof.workloads import Case

REQUESTS = 200


async def client_ms(case: Case, answers_json: bytes) -> float:
    """Median milliseconds of a case that is answered at once with these answers."""
    body = b'{"model": "idle", "usage": {"input_tokens": 0}, "answers": %b}' % answers_json
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    reply = f"{head}\r\n".encode() + body
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Idle(reply), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    load = Load(
        Target.of(f"http://127.0.0.1:{port}"),
        [case],
        AnswerCheck(tolerance=1.0),
        path="/",
        timeout_s=60.0,
        progress=lambda what, done, total: None,
    )
    samples, _ = await load.run(Mode(concurrency=1), [0] * REQUESTS)
    server.close()
    await server.wait_closed()
    return statistics.median(sample.latency_ms for sample in samples)


class _Idle(asyncio.Protocol):
    """Reads whole requests and sends one fixed reply to each."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(self._reply)  # type: ignore[attr-defined]
