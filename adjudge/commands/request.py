"""A request from the command line: a JSON file, standard input, or questions given as flags."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError, UsageError
from adjudge.wire import decode_json

NO_REQUEST = "no request; give a file, JSON on standard input, or --state and --noul"


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """--state and the questions, as an alternative to a request file."""
    group = parser.add_argument_group(
        "a request in flags",
        "Questions are answered under the names noul, choice, score; a second one of a kind is "
        "noul_2, and so on.",
    )
    group.add_argument("--state", metavar="TEXT", help="what the questions are about")
    group.add_argument(
        "--noul", action="append", default=[], metavar="QUESTION", help="a yes/no question"
    )
    group.add_argument(
        "--choice",
        action="append",
        default=[],
        nargs="+",
        metavar=("QUESTION", "OPTION"),
        help="a question and its options; KEY=TEXT describes an option",
    )
    group.add_argument(
        "--score",
        action="append",
        default=[],
        nargs="+",
        metavar=("QUESTION", "LEVEL"),
        help="a question and its levels, low to high",
    )
    group.add_argument("--to", metavar="NAME", help="which model of a server that has several")


def read_request(arguments: argparse.Namespace) -> dict[str, Any]:
    """The request body, not yet validated. `arguments.request`: file, "-" or None.

    Raises UsageError for an unreadable body, ConfigError for flags that make no request.
    """
    in_flags = has_request_flags(arguments)
    if in_flags and arguments.request is not None:
        raise ConfigError("a request file and --state, --to or question flags were given; give one")
    if in_flags:
        return _from_flags(arguments)
    if arguments.request is None and sys.stdin.isatty():
        raise ConfigError(NO_REQUEST)
    if arguments.request in (None, "-"):
        body, name = sys.stdin.buffer.read(), "standard input"
    else:
        name = arguments.request
        try:
            body = Path(name).read_bytes()
        except OSError as error:
            raise ConfigError(f"{name}: cannot be read ({error.strerror})") from None
    if not body.strip():
        if arguments.request is None:
            raise ConfigError(NO_REQUEST)
        raise ConfigError(f"{name}: empty; a request is a JSON object with state and questions")
    value = decode_json(body)
    if not isinstance(value, dict):
        raise UsageError(f"{name}: a request is a JSON object with state and questions")
    return value


def has_request_flags(arguments: argparse.Namespace) -> bool:
    """Whether a flag of a request was given. Raises ConfigError for a flag without options."""
    given = arguments.state is not None or arguments.to is not None
    return given or bool(_questions(arguments))


def _from_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    questions = _questions(arguments)
    if arguments.state is None:
        raise ConfigError("questions without a state; give --state TEXT")
    if not questions:
        raise ConfigError("a state without questions; give --noul, --choice or --score")
    named = {} if arguments.to is None else {"model": arguments.to}
    return {"state": arguments.state, **named, "questions": questions}


def _questions(arguments: argparse.Namespace) -> dict[str, Any]:
    named: dict[str, Any] = {}

    def add(kind: str, body: dict[str, Any]) -> None:
        number = sum(one["type"] == kind for one in named.values()) + 1
        named[kind if number == 1 else f"{kind}_{number}"] = {"type": kind, **body}

    for text in arguments.noul:
        add("noul", {"instructions": text})
    for text, *options in arguments.choice:
        if not options:
            raise ConfigError(f"--choice {text!r} has no options; write them after the question")
        pairs = [option.partition("=") for option in options]
        keys = [key for key, _, _ in pairs]
        if len(set(keys)) < len(keys):
            raise ConfigError(f"--choice {text!r} has an option twice; options differ by key")
        criteria = {key: described if sign else None for key, sign, described in pairs}
        add("choice", {"instructions": text, "criteria": criteria})
    for text, *levels in arguments.score:
        if not levels:
            raise ConfigError(f"--score {text!r} has no levels; write them after the question")
        add("score", {"instructions": text, "criteria": levels})
    return named
