"""Answer one request here, without a server, or send it to one with --url.

  adjudge ask FOLDER request.json
  adjudge ask FOLDER < request.json
  adjudge ask FOLDER --state "The parcel is late." --noul "Is it urgent?" \\
      --choice "Which team?" billing shipping --score "How upset?" calm annoyed furious
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from typing import Any

from adjudge.commands.request import add_request_flags, read_request
from adjudge.commands.table import table
from adjudge.errors import ConfigError
from adjudge.origins import add_flags, resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="FOLDER", help="model folder"
    )
    parser.add_argument("request", nargs="?", metavar="REQUEST", help="JSON file; - for stdin")
    parser.add_argument("--url", help="ask this server, for example http://127.0.0.1:8000")
    parser.add_argument("--json", action="store_true", help="print the whole response as JSON")
    add_request_flags(parser)
    add_flags(parser, ["engine"], leave_out=["model"])


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), os.environ)
    if arguments.url:
        # No model is loaded, so a lone positional is the request.
        if arguments.request is None and "model" in vars(arguments):
            arguments.request = arguments.model
        response = _ask_server(arguments.url, read_request(arguments), settings.service.api_key)
    else:
        request = read_request(arguments)
        from adjudge.commands.load import load_engine

        engine = load_engine(settings.engine)
        try:
            response = engine.decide(request)
        finally:
            engine.close()
    print(json.dumps(response, indent=2, ensure_ascii=False) if arguments.json else _text(response))
    return 0


def _ask_server(url: str, request: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    if keys:
        headers["authorization"] = f"Bearer {keys[0]}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url is {url!r}; it takes an http:// or https:// address")
    sent = urllib.request.Request(  # noqa: S310
        f"{url.rstrip('/')}/v1/systemone", json.dumps(request).encode(), headers
    )
    try:
        with urllib.request.urlopen(sent) as received:  # noqa: S310
            body: dict[str, Any] = json.load(received)
            return body
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{url} answered {error.code}: {error.read().decode()}") from None
    except urllib.error.URLError as error:
        raise ConfigError(f"{url} cannot be reached ({error.reason}); is it serving?") from None


def _text(response: dict[str, Any]) -> str:
    rows = []
    for name, answer in response["answers"].items():
        kind = answer["type"]
        rows.append((name, kind, answer[kind], answer.get("confidence"), _spread(answer)))
    answers = table(["question", "type", "answer", "confidence", "probabilities"], rows)
    return f"{answers}\n\n{response['model']}, {response['usage']['input_tokens']:,} tokens read"


def _spread(answer: dict[str, Any]) -> str:
    legend = answer.get("legend", {})
    named = {key: legend.get(key, key) for key in answer.get("probabilities", {})}
    parts = [f"{named[key]} {p:.4f}" for key, p in answer.get("probabilities", {}).items()]
    return "  ".join(parts) or "-"
