"""What every comparison of the self-check gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One comparison. name: what was compared; shape: of what; passed: every bit was equal, or
    for an op all that rounding leaves; detail: which rows or prompts differed, else how many were
    compared."""

    name: str
    shape: str
    detail: str
    passed: bool
