"""`adjudge ask --url` against whatever may be at an address: one line, and exit code 2."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from adjudge.cli import main

ASKED = ["--state", "a", "--noul", "b"]
ANSWER = {
    "model": "m",
    "usage": {"input_tokens": 3},
    "answers": {"q": {"type": "noul", "noul": 0.5}},
}


@contextmanager
def replying(reply: bytes) -> Iterator[str]:
    """The address of a server that reads one request, sends this and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link, link.makefile("rb") as reader:
                while reader.readline() not in (b"\r\n", b""):
                    pass
                link.sendall(reply)
                link.shutdown(socket.SHUT_WR)
                reader.read()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def http(body: bytes, status: str = "200 OK", *, missing: int = 0) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-length: {len(body) + missing}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (b"", "cannot be asked (Remote end closed connection without response)"),
        (b"SSH-2.0-server\r\n", "cannot be asked (SSH-2.0-server"),
        (http(b"{}", missing=9), "cannot be asked (IncompleteRead(2 bytes read, 9 more expected)"),
        (http(b"{}", "503 Busy", missing=9), "cannot be asked (IncompleteRead(2 bytes read"),
        (http(b"down", "503 Busy"), "answered 503: down"),
        (http(b"welcome"), "answered no System One answer"),
        (http(b"[]"), "answered no System One answer"),
        (http(b'{"answers": {"q": {"type": "noul"}}}'), "answered no System One answer"),
        (http(b'{"answers": {}, "model": "m"}'), "answered no System One answer"),
    ],
)
def test_what_is_no_answer_is_told_in_one_line(
    reply: bytes, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with replying(reply) as url:
        assert main(["ask", "--url", url, *ASKED]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"adjudge ask: {url} {told}") and said.count("\n") == 1


@pytest.mark.parametrize("url", ["http://a b", "http://[::1", "http://127.0.0.1:99999"])
def test_an_address_that_is_none_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "--url", url, *ASKED]) == 2
    assert capsys.readouterr().err.startswith(f"adjudge ask: {url} cannot be asked (")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_answer_is_shown(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with replying(http(json.dumps(ANSWER).encode())) as url:
        assert main(["ask", "--url", url, *ASKED, *form]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown) == ANSWER if form else "m, 3 tokens read" in shown
