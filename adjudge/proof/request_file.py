"""Requests of one's own: a JSONL file, one request a line, with labels if they are known.

A line is a request body {"state", "questions"}, or {"request": body, "id"?, "labels"?}; labels:
question -> true or false (noul), an option (choice), a level's number (score).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError, RequestError
from adjudge.proof.workloads import Case, Workload
from adjudge.wire import decode_json


def read_workload(path: Path) -> Workload:
    """The file's requests, in order. Raises ConfigError naming the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    cases = [
        _case(line, f"{path}, line {number}", f"line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not cases:
        raise ConfigError(f"{path}: holds no request; it takes one JSON object a line")
    if len({case.id for case in cases}) < len(cases):
        raise ConfigError(f"{path}: two requests have the same id")
    return Workload(path.name, tuple(cases))


def _case(line: bytes, where: str, name: str) -> Case:
    try:
        value = decode_json(line)
    except RequestError as error:
        raise ConfigError(f"{where}: {error.message}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a line is a JSON object with state and questions")
    request = value.get("request", value)
    questions = request.get("questions") if isinstance(request, dict) else None
    if not isinstance(questions, dict) or "state" not in request:
        raise ConfigError(f"{where}: a request is an object with state and questions")
    for question in questions.values():
        _check_question(question, where)
    labels = value.get("labels") if "request" in value else None
    kinds = sorted({question["type"] for question in questions.values()})
    return Case(
        id=str(value.get("id", name)) if "request" in value else name,
        group=" + ".join(kinds),
        request=request,
        labels=None if labels is None else _labels(labels, questions, where),
    )


def _check_question(question: Any, where: str) -> None:
    kind = question.get("type") if isinstance(question, dict) else None
    if kind not in ("noul", "choice", "score"):
        raise ConfigError(f"{where}: a question's type is {kind!r}; it is noul, choice or score")
    expected = {"choice": dict, "score": list}.get(kind)
    if expected is not None and not isinstance(question.get("criteria"), expected):
        raise ConfigError(f"{where}: a {kind} question has its candidates in criteria")


def _labels(labels: Any, questions: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(labels, dict) or not set(labels) <= set(questions):
        raise ConfigError(f"{where}: labels is an object of question names")
    for name, label in labels.items():
        question = questions[name]
        fits = {
            "noul": isinstance(label, bool),
            "choice": label in question.get("criteria", ()),
            "score": type(label) is int and 0 <= label < len(question.get("criteria", ())),
        }[question["type"]]
        if not fits:
            raise ConfigError(f"{where}: {label!r} is no answer to question {name!r}")
    return labels
