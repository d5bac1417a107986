"""Other spellings of a question that some families' own clients send.

`bool` for the type noul, `question` for instructions, and `options` for criteria. The official
spelling wins where both are given. Families that take these take a choice's options as an array
of strings too, which validation reads.
"""

from __future__ import annotations

from typing import Any


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
    return official
