"""The server asks itself: a real request through the application, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from adjudge.errors import InternalError
from adjudge.families import Limits
from adjudge.service.exchange import OWN


def small_request(name: str, limits: Limits) -> dict[str, Any]:
    """One short question of each type that the model of this name answers."""
    options, levels = max(2, limits.min_options), max(2, limits.min_levels)
    questions = {
        "noul": {"type": "noul", "instructions": "Is this a test?"},
        "choice": {
            "type": "choice",
            "instructions": "What is this?",
            "criteria": {f"option {place}": None for place in range(options)},
        },
        "score": {
            "type": "score",
            "instructions": "How urgent is it?",
            "criteria": [f"level {place}" for place in range(levels)],
        },
    }
    asked = {kind: question for kind, question in questions.items() if kind in limits.answers}
    return {"model": name, "state": "The server tests itself.", "questions": asked}


async def ask_app(app: ASGIApp, name: str, limits: Limits) -> None:
    """Send `small_request` to POST /v1/systemone. Raises InternalError unless it is answered."""
    body = msgspec.json.encode(small_request(name, limits))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/systemone",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        OWN: True,
    }
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    status = sent[0]["status"] if sent else None
    if status != 200:
        raise InternalError(f"the server's own small request was answered with {status}")
