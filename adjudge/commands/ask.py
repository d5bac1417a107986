"""Answer one request here, without a server, or send it to one with --url.

  adjudge ask FOLDER request.json
  adjudge ask FOLDER < request.json
  adjudge ask FOLDER --state "The parcel is late." --noul "Is it urgent?" \\
      --choice "Which team?" billing shipping --score "How upset?" calm annoyed furious
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adjudge.commands.load import check_folder, with_model
from adjudge.commands.request import add_request_flags, has_request_flags, read_request
from adjudge.commands.table import shown, table
from adjudge.config import EngineConfig, is_key
from adjudge.errors import ConfigError
from adjudge.origins import Settings, add_flags, resolve
from adjudge.progress import Reporter

if TYPE_CHECKING:
    from adjudge.engine import Engine

MOST_SHOWN = 300
"""Characters of a reply that is not System One's."""

_REDIRECTS = (301, 302, 303, 307, 308)
_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a body raises that is no JSON, or not of the shape that it should have."""


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
    if arguments.url is not None:
        _refuse_engine_flags(settings)
        if "model" in vars(arguments):
            arguments.request = _only_request(arguments)
        response = _ask_server(arguments.url, read_request(arguments), settings.service.api_key)
    else:
        check_folder(settings.engine)
        request = read_request(arguments)
        engine = _engine_for(request, with_model(settings.engine))
        try:
            response = engine.decide(request)
        finally:
            engine.close()
    print(json.dumps(response, indent=2, ensure_ascii=False) if arguments.json else _text(response))
    return 0


def _refuse_engine_flags(settings: Settings) -> None:
    """With --url the engine is the server's."""
    for value in settings.values:
        if value.section == "engine" and value.name != "model" and value.origin.startswith("flag"):
            flag = value.origin.removeprefix("flag ")
            flag = flag.replace("--", "--no-") if value.value is False else flag
            raise ConfigError(
                f"{flag} and --url were both given; {flag} is for an engine that runs here, so "
                "leave one out"
            )


def _only_request(arguments: argparse.Namespace) -> str:
    """The lone positional, which with --url is the request: no model is loaded."""
    given: str = arguments.model
    is_folder = Path(given).is_dir() or (
        has_request_flags(arguments) and given != "-" and not Path(given).is_file()
    )
    if arguments.request is not None or is_folder:
        raise ConfigError(
            f"{given} and --url were both given; the model is a FOLDER here or a server, so leave "
            "one out"
        )
    return given


def _engine_for(request: dict[str, Any], config: EngineConfig) -> Engine:
    """A loaded engine, once the request is known to be one that it answers: loading a large model
    takes minutes."""
    from adjudge.compiler import Compiler
    from adjudge.engine import Engine, open_model

    checkpoint = open_model(config)
    compiler = Compiler.of_checkpoint(checkpoint, config)
    compiler.compile(request)
    return Engine(checkpoint, config, Reporter(), compiler=compiler)


def _ask_server(url: str, request: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    if keys:
        if not is_key(keys[0]):
            raise ConfigError(
                "the key in ADJUDGE_API_KEY has a character that no header may hold; keys are of "
                "printable ASCII without spaces"
            )
        headers["authorization"] = f"Bearer {keys[0]}"
    if not url.lower().startswith(("http://", "https://")):
        raise ConfigError(f"--url is {url!r}; it takes an http:// or https:// address")
    address = f"{url.rstrip('/')}/v1/systemone"
    try:
        status, answered = _sent(address, json.dumps(request).encode(), headers)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", error)).strip() or type(error).__name__
        told = f"{url} cannot be asked ({_on_a_line(reason)}); is it serving?"
        raise ConfigError(told) from None
    if status != HTTPStatus.OK:
        raise ConfigError(f"{url} answered {status}: {_reason(answered)}")
    try:
        body: dict[str, Any] = json.loads(answered)
        _text(body)
    except _NOT_OURS:
        raise ConfigError(f"{url} answered no System One answer; is it such a server?") from None
    return body


def _sent(address: str, content: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body of the reply. Raises OSError, HTTPException, and ValueError for an address
    that is none."""
    try:
        made = urllib.request.Request(address, content, headers)  # noqa: S310
        with urllib.request.build_opener(_Stay).open(made) as received:
            return received.status, received.read()
    except urllib.error.HTTPError as refused:
        if refused.code in _REDIRECTS:
            elsewhere = refused.headers.get("location", "an address that it does not name")
            return refused.code, f"it points to {elsewhere}; give --url that server".encode()
        return refused.code, refused.read()


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: a key is for the server that was named."""

    def redirect_request(self, *given: Any) -> None:
        return None


def _reason(body: bytes) -> str:
    """What a refusal says, line by line; as it is where it is not System One's."""
    text = body.decode(errors="replace")
    try:
        detail = json.loads(text)["detail"]
        if isinstance(detail, dict):
            return shown(str(detail["message"]))
        told = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in detail)
        return "\n".join(map(shown, told))
    except _NOT_OURS:
        return _on_a_line(text) or "nothing more"


def _on_a_line(text: str) -> str:
    """Foreign text, without what a terminal would obey, and not all of a page."""
    return shown(text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…")


def _text(response: dict[str, Any]) -> str:
    rows = []
    for name, answer in response["answers"].items():
        kind = answer["type"]
        rows.append((name, kind, answer[kind], answer.get("confidence"), _spread(answer)))
    answers = table(["question", "type", "answer", "confidence", "probabilities"], rows)
    model, tokens = shown(response["model"]), response["usage"]["input_tokens"]
    return f"{answers}\n\n{model}, {tokens:,} tokens read"


def _spread(answer: dict[str, Any]) -> str:
    legend = answer.get("legend", {})
    named = {key: legend.get(key, key) for key in answer.get("probabilities", {})}
    parts = [f"{named[key]} {p:.4f}" for key, p in answer.get("probabilities", {}).items()]
    return "  ".join(parts) or "-"
