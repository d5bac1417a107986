"""Results to be compared, read back: our own files, or answers recorded from any server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.proof.answers import AnyAnswer
from adjudge.proof.drift import Answers
from adjudge.proof.result import RESULTS, AnyResult, EngineResult, ServeResult


@dataclass(frozen=True, slots=True)
class Recorded:
    """Answers without times. A line of the file: {"id", "answers"}, or {"id", "response"}."""

    answers: Answers


class _Line(msgspec.Struct):
    id: str
    answers: dict[str, Any] | None = None
    response: dict[str, Any] | None = None


Comparable = ServeResult | EngineResult | Recorded


def read_comparable(path: Path) -> Comparable:
    """A result of `bench`, or a JSONL file of answers. Raises ConfigError."""
    whole, body = _read(path)
    if not isinstance(whole, dict) or "kind" not in whole:
        return _recorded(path, body)
    found = result_from(path, whole)
    if not isinstance(found, ServeResult | EngineResult):
        raise ConfigError(f"{path}: a result of kind {found.kind!r}; compared are serve and engine")
    return found


def read_result(path: Path) -> AnyResult:
    """A result that a command of ours wrote. Raises ConfigError."""
    whole, _ = _read(path)
    if not isinstance(whole, dict):
        raise ConfigError(f"{path}: no result of adjudge")
    return result_from(path, whole)


def _read(path: Path) -> tuple[Any, bytes]:
    """The JSON value in a file, None where it is none, and the file's bytes."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return msgspec.json.decode(body), body
    except msgspec.DecodeError:
        return None, body


def result_from(path: Path, whole: dict[str, Any]) -> AnyResult:
    """A result from its JSON object, read from `path`. Raises ConfigError."""
    kind = RESULTS.get(whole.get("kind", ""))
    if kind is None:
        raise ConfigError(
            f"{path}: a result of kind {whole.get('kind')!r}; known: {', '.join(RESULTS)}"
        )
    try:
        return msgspec.convert(whole, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: no result of this version of adjudge: {error}") from None


def _recorded(path: Path, body: bytes) -> Recorded:
    answers: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(body.splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
            found = line.answers if line.response is None else line.response.get("answers")
            msgspec.convert(found, dict[str, AnyAnswer])
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}, line {number}: no recorded answers: {error}") from None
        if line.id in answers:
            raise ConfigError(f"{path}, line {number}: the id {line.id!r} was there before")
        answers[line.id] = found or {}
    if not answers:
        raise ConfigError(f"{path}: neither a result of adjudge bench nor JSON lines of answers")
    return Recorded(answers)
