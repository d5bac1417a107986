"""The types of a request, as spec'd for POST /v1/systemone. All are immutable once parsed.

Text that the model may read is `Text`: a string, or JSON (an object or an array) that a family
renders. None always means "not given"; an empty string is a given, empty text.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Text = str | dict[str, Any] | list[Any]

MAX_SALT = 256
"""Longest `cache_salt`, in characters."""


class NoulCriteria(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as a yes (`true`) and as a no (`false`); either side may be left out."""

    true: Text | None = None
    false: Text | None = None


class Noul(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="noul"):
    """A yes/no question: instructions, or at least one described side, or both."""

    instructions: Text | None = None
    criteria: NoulCriteria | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """A pick of one of `criteria`'s keys (request order kept); a value of None is undescribed."""

    criteria: dict[str, Text | None]
    instructions: Text | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """A rating on `criteria`, the levels from low (0) to high."""

    criteria: list[Text]
    instructions: Text | None = None


Question = Noul | Choice | Score


def kind_of(question: Question) -> str:
    """The question's type as the wire spells it."""
    return str(type(question).__struct_config__.tag)


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """A medium that stands for its placeholder: bytes in base64, or the name of a body part."""

    type: str
    format: str | None = None
    data_base64: str | None = None
    part: str | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One state and the questions about it, in the order in which they will be answered.

    cache_salt: what is kept of a request for later ones serves requests of an equal salt only.
    """

    state: Text
    questions: dict[str, Question]
    model: str | None = None
    assets: dict[str, Asset] | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT)] | None = None
    diagnostics: bool = msgspec.field(default=False, name="x_diagnostics")
