"""Plain aligned tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
