"""The server asks itself: a real request through the application, without a socket."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from adjudge.errors import InternalError
from adjudge.families import Limits
from adjudge.service.exchange import OWN

log = logging.getLogger("adjudge.warmup")


def small_questions(limits: Limits) -> dict[str, dict[str, Any]]:
    """One short question of each type that a model of these limits answers, by its type."""
    options, levels = max(2, limits.min_options), max(2, limits.min_levels)
    questions: dict[str, dict[str, Any]] = {
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
    return {kind: question for kind, question in questions.items() if kind in limits.answers}


async def ask_app(app: ASGIApp, name: str, limits: Limits) -> None:
    """Send the `small_questions` to POST /v1/systemone, together, or alone if that is refused.

    What the limits in force refuse even alone is said in the log: such a server is of use to
    whoever set them. Raises InternalError for any other refusal.
    """
    questions = small_questions(limits)
    if (await _ask(app, name, questions))[0] == 200:
        return
    for kind, question in questions.items():
        status, reply = await _ask(app, name, {kind: question})
        if status in (400, 408, 413, 422):
            what = (
                "the server's own small %s question to %s is refused under the limits in force: %s"
            )
            log.warning(what, kind, name, reply.decode(errors="replace"))
        elif status != 200:
            raise InternalError(
                f"the server's own small {kind} question was answered with {status}"
            )


async def _ask(app: ASGIApp, name: str, questions: dict[str, Any]) -> tuple[int | None, bytes]:
    """Status and body of the answer."""
    request = {"model": name, "state": "The server tests itself.", "questions": questions}
    body = msgspec.json.encode(request)
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
    return status, b"".join(message.get("body", b"") for message in sent[1:])
