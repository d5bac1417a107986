"""The families as rows: what `adjudge models` lists, and what docs/families.md is made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from adjudge.families import FAMILIES, Limits, ModelCard, family_class
from adjudge.families.about import About


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """name: its row in FAMILIES; what: the first line of its file; limits: before any setting."""

    name: str
    what: str
    limits: Limits
    about: About

    @property
    def answers(self) -> str:
        return ", ".join(self.limits.answers)

    @property
    def options(self) -> str:
        return _range("choice", self.limits, self.limits.min_options, self.limits.max_options)

    @property
    def levels(self) -> str:
        return _range("score", self.limits, self.limits.min_levels, self.limits.max_levels)

    def facts(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {
            "family": self.name,
            "what": self.what,
            "limits": asdict(self.limits),
            **asdict(self.about),
        }


def family_rows() -> list[FamilyRow]:
    """All families, in the order of FAMILIES."""
    rows = []
    for name, place in FAMILIES.items():
        what = (import_module(place.partition(":")[0]).__doc__ or "").partition("\n")[0]
        family = family_class(name)
        limits = family.limits_for(ModelCard(name=name, family=name))
        rows.append(FamilyRow(name, what, limits, family.about))
    return rows


def _range(kind: str, limits: Limits, least: int, most: int) -> str:
    if kind not in limits.answers:
        return "-"
    return str(most) if least == most else f"{least} to {most}"
