"""Values of a request as the text that a model reads."""

from __future__ import annotations

import json
from typing import Any


def json_text(value: Any) -> str:
    """Python's JSON: insertion order, default separators, nothing escaped that need not be."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def plain_text(value: Any) -> str:
    """A string as it is, nothing for None, anything else as `json_text`."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)
