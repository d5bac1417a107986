"""Plain aligned tables for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, the two line separators, and what reverses the direction of writing."""


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]], *, decimals: int = 4) -> str:
    """Columns two spaces apart; numbers to the right, floats with so many decimals."""
    cells = [[_cell(value, decimals) for value in row] for row in rows]
    right = [
        all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        for i in range(len(headers))
    ]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    lines = [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in (list(headers), *cells)
    ]
    return "\n".join(lines)


def _cell(value: Any, decimals: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.{decimals}f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return shown(str(value))


def shown(text: str) -> str:
    """Text on one line, with what a terminal would obey written out: a line feed as \\n."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
