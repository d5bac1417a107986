"""Other spellings of a question that some families' own clients send.

`bool` for the type noul, `question` for instructions, `options` for criteria, and a choice's
options as an array of strings. The official spelling wins where both are given.
"""

from __future__ import annotations

from typing import Any, TypeGuard


def spelled_out(question: Any) -> Any:
    """The question in the official spelling; what is no alias is left for validation to judge."""
    if not isinstance(question, dict):
        return question
    official = dict(question)
    if official.get("type") == "bool":
        official["type"] = "noul"
    for alias, name in (("question", "instructions"), ("options", "criteria")):
        if name not in official and alias in official:
            official[name] = official.pop(alias)
    options = official.get("criteria")
    if official.get("type") == "choice" and _are_distinct_strings(options):
        official["criteria"] = dict.fromkeys(options)
    return official


def _are_distinct_strings(options: Any) -> TypeGuard[list[str]]:
    return (
        isinstance(options, list)
        and len(options) > 0
        and all(isinstance(option, str) for option in options)
        and len(set(options)) == len(options)
    )
