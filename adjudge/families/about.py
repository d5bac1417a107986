"""What a family says of itself besides its limits, for `adjudge models` and docs/families.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A released checkpoint by its names and commits on the model hub.

    geometry: its released size; base: the model that an adapter is published without.
    """

    name: str
    revision: str
    geometry: str
    base: str | None = None
    base_revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """prompts: what is read, and how often; labels: what is read out at a prompt's end, and in
    which precision; empty: what becomes of text that is absent or empty; folder: the files that
    its release consists of; adapter: what its authors do with the adapter, if it has one;
    decide: whether POST /v1/decide asks it."""

    prompts: str
    labels: str
    empty: str
    folder: str
    releases: tuple[Release, ...]
    adapter: Literal["merged", "unmerged", "none"] = "merged"
    decide: bool = False
