"""The page at /docs: a form that asks this server, and how to ask it from elsewhere."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Page:
    html: str
    headers: dict[str, str]


def page(model: str) -> Page:
    """The page for a model's name. Its policy allows its own script and style and nothing else."""
    source = files("adjudge.service").joinpath("playground.html").read_text(encoding="utf-8")
    html = source.replace("{{model}}", escape(model))
    policy = (
        f"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {_hash(html, 'script')}; "
        f"style-src {_hash(html, 'style')}"
    )
    return Page(html, {"content-security-policy": policy, "x-content-type-options": "nosniff"})


def _hash(html: str, tag: str) -> str:
    """The policy's source expression for the one inline element of this tag."""
    found = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    text = found.group(1) if found else ""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
