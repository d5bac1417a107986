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
        (http(b"down", "503 Busy"), "answered 503: down\n"),
        (http(b"", "404 Not Found"), "answered 404: nothing more\n"),
        (http(b"<html>\xff\n\x1b[31m", "502 Bad"), "answered 502: <html>\ufffd\\n\\x1b[31m\n"),
        (http(b"x" * 900, "502 Bad"), f"answered 502: {'x' * 300}…\n"),
        (http(b"[" * 200_000, "503 Busy"), "answered 503: [[["),
        (http(b'{"detail": 3}', "422 No"), 'answered 422: {"detail": 3}\n'),
        (
            http(
                b'{"detail": {"error_type": "api_usage_error", "message": "no \\u00e9"}}', "422 No"
            ),
            "answered 422: no é\n",
        ),
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            "answered 302: it points to http://127.0.0.1:1/; give --url that server\n",
        ),
        (
            b"HTTP/1.1 307 Temporary Redirect\r\ncontent-length: 0\r\n\r\n",
            "answered 307: it points to an address that it does not name",
        ),
        (http(b"[" * 200_000), "answered no System One answer"),
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


def test_a_refusal_of_several_faults_has_a_line_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = b'{"detail": [{"loc": ["q", 2], "msg": "a"}, {"loc": [], "msg": "b"}]}'
    with replying(http(body, "422 No")) as url:
        assert main(["ask", "--url", url, *ASKED]) == 2
    assert capsys.readouterr().err == f"adjudge ask: {url} answered 422: q.2: a\n: b\n"


@pytest.mark.parametrize("key", ["sek\nret", "sékret", "sek ret"])
def test_a_key_that_no_header_holds_is_refused_and_not_shown(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ADJUDGE_API_KEY", key)
    assert main(["ask", "--url", "http://127.0.0.1:1", *ASKED]) == 2
    told = capsys.readouterr().err
    assert "ADJUDGE_API_KEY has a character that no header may hold" in told
    assert "s\u00e9k" not in told and "sek" not in told


@pytest.mark.parametrize("url", ["", "ftp://h", "h:80"])
def test_an_address_of_no_web_server_is_refused(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "--url", url, *ASKED]) == 2
    assert f"--url is {url!r}; it takes an http://" in capsys.readouterr().err


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
