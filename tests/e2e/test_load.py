"""The load's client and clock, against a scripted server in the same event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence

import pytest

from adjudge.errors import ConfigError
from adjudge.proof.answer_book import AnswerBook
from adjudge.proof.answers import AnswerCheck
from adjudge.proof.connection import Target
from adjudge.proof.load import Load, Mode, Sample
from adjudge.proof.workloads import Case

CASE = Case("c", "g", {"state": "s", "questions": {"q": {"type": "noul", "instructions": "i"}}})
ANSWER = json.dumps(
    {
        "model": "m",
        "answers": {"q": {"type": "noul", "noul": 0.25}},
        "usage": {"input_tokens": 3},
    }
).encode()

Step = Callable[[asyncio.WriteTransport], None]
"""What the server does with one request; it closes the connection where it says so."""


def whole(writer: asyncio.WriteTransport) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))


def chunked(writer: asyncio.WriteTransport) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n")
    writer.write(b"Server-Timing: run;dur=1.5, queue;dur=0.25\r\n\r\n")
    for part in (ANSWER[:10], ANSWER[10:]):
        writer.write(b"%x\r\n%b\r\n" % (len(part), part))
    writer.write(b"0\r\n\r\n")


def then_closed(writer: asyncio.WriteTransport) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n")
    writer.write(b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))
    writer.close()


def cut(writer: asyncio.WriteTransport) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{")
    writer.close()


def garbage(writer: asyncio.WriteTransport) -> None:
    writer.write(b"SMTP 1\r\n\r\n")


def silent(writer: asyncio.WriteTransport) -> None:
    """Never answers."""


def full(writer: asyncio.WriteTransport) -> None:
    writer.write(b"HTTP/1.1 529 Full\r\ncontent-length: 2\r\n\r\n{}")


class Scripted(asyncio.Protocol):
    """Takes a step of the script for each whole request."""

    def __init__(self, script: Iterator[Step], opened: list[asyncio.WriteTransport]) -> None:
        self._script = script
        self._opened = opened
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._opened.append(transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and head and body == CASE.body:
            self._received = b""
            next(self._script)(self._transport)


async def run(
    steps: Sequence[Step], mode: Mode, *, timeout_s: float = 30.0
) -> tuple[list[Sample], int]:
    """Samples of one request for each step, and how many connections were opened."""
    script = iter(steps)
    opened: list[asyncio.WriteTransport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Scripted(script, opened), "127.0.0.1", 0)
    load = Load(
        Target.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"),
        [CASE],
        AnswerCheck(),
        path="/v1/systemone",
        timeout_s=timeout_s,
        progress=lambda what, done, total: None,
    )
    samples, _ = await load.run(mode, [0] * len(steps))
    for transport in opened:
        transport.abort()
    server.close()
    await server.wait_closed()
    return samples, len(opened)


def test_replies_of_every_framing_are_read() -> None:
    samples, opened = asyncio.run(
        run([whole, chunked, then_closed, whole, whole], Mode(concurrency=1))
    )
    assert [sample.fault for sample in samples] == [None] * 5
    assert opened == 2
    assert samples[1].timing == b"run;dur=1.5, queue;dur=0.25"
    assert samples[0].timing == b""


@pytest.mark.parametrize(
    "step, message",
    [(cut, "closed by the server"), (garbage, "not HTTP"), (silent, "no reply in 0.05 s")],
)
def test_a_broken_reply_fails_its_request_only(step: Step, message: str) -> None:
    samples, opened = asyncio.run(
        run([whole, step, whole], Mode(concurrency=1), timeout_s=0.05 if step is silent else 30)
    )
    assert [sample.fault is None for sample in samples] == [True, False, True]
    assert message in str(samples[1].fault)
    assert opened == 2


def test_requests_in_flight_are_as_many_as_asked_for() -> None:
    waiting: list[asyncio.WriteTransport] = []
    most = 0

    def in_threes(writer: asyncio.WriteTransport) -> None:
        nonlocal most
        waiting.append(writer)
        most = max(most, len(waiting))
        if len(waiting) == 3:
            for one in waiting:
                whole(one)
            waiting.clear()

    samples, opened = asyncio.run(run([in_threes] * 9, Mode(concurrency=3)))
    assert all(sample.fault is None for sample in samples)
    assert (most, opened) == (3, 3)


def test_an_open_loop_sends_on_while_answers_are_missing() -> None:
    waiting: list[asyncio.WriteTransport] = []

    def at_the_end(writer: asyncio.WriteTransport) -> None:
        waiting.append(writer)
        if len(waiting) == 10:
            for one in waiting:
                whole(one)

    samples, opened = asyncio.run(run([at_the_end] * 10, Mode(rate_per_s=200.0)))
    assert opened == 10
    by_start = sorted(samples, key=lambda sample: sample.start_ms)
    assert [sample.start_ms for sample in by_start] == pytest.approx([5.0 * i for i in range(10)])
    # All were answered together, after the last was due: the first waited for all the others.
    assert by_start[0].latency_ms >= 45
    assert by_start[0].latency_ms > by_start[-1].latency_ms


def test_a_full_server_is_a_fault_of_a_closed_loop_only() -> None:
    samples, _ = asyncio.run(run([whole, full], Mode(concurrency=1)))
    assert [sample.turned_away for sample in samples] == [False, True]
    for may_turn_away, passed in ((True, True), (False, False)):
        book = AnswerBook([CASE])
        book.add("m", samples, may_turn_away=may_turn_away)
        assert book.gates(allow_inexact=False)[0].passed is passed
    book = AnswerBook([CASE])
    book.add("m", samples[1:], may_turn_away=True)
    assert book.gates(allow_inexact=False)[0].detail == "m: every request was turned away"


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://a", "http://", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="it takes an http"):
        Target.of(url)


def test_messages_carry_prefix_host_and_key() -> None:
    target = Target.of("https://host.example/base/", "secret")
    assert (target.host, target.port, target.tls) == ("host.example", 443, True)
    head, _, body = target.message("POST", "/v1/systemone", b"{}").partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/v1/systemone HTTP/1.1\r\nhost: host.example\r\n")
    assert b"authorization: Bearer secret" in head
    assert b"content-length: 2" in head
    assert body == b"{}"
