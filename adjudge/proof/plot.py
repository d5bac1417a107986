"""Two plots as SVG: cumulative distributions over a logarithmic axis, and bars."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 48, 170, 12, 36
COLOURS = ("#3069c9", "#d2601a", "#2b8a3e", "#9c36b5", "#c92a2a", "#0b7285", "#846800", "#5c5f66")


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    times_ms: Sequence[float]


def distribution(lines: Sequence[Line]) -> str:
    """Share of `times_ms` up to a time, for each line; x is logarithmic."""
    every = [time for line in lines for time in line.times_ms]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    high = max(high, low + 1)

    def x_of(time: float) -> float:
        return LEFT + (math.log10(time) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y_of(share: float) -> float:
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for power in range(low, high + 1):
        x = x_of(10.0**power)
        parts.append(_rule(x, TOP, x, HEIGHT - BOTTOM))
        parts.append(_text(x, HEIGHT - BOTTOM + 18, f"{10.0**power:g} ms", "middle"))
    for share in (0.0, 0.5, 0.95, 1.0):
        parts.append(_rule(LEFT, y_of(share), WIDTH - RIGHT, y_of(share)))
        parts.append(_text(LEFT - 6, y_of(share) + 4, f"{share:.0%}", "end"))
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        times = sorted(line.times_ms)
        points = " ".join(
            f"{x_of(time):.1f},{y_of((i + 1) / len(times)):.1f}" for i, time in enumerate(times)
        )
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>'
        )
        y = TOP + 16 * (number + 1)
        parts.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{y - 9}" width="10" height="10" '
                     f'fill="{colour}"/>')  # fmt: skip
        parts.append(_text(WIDTH - RIGHT + 28, y, line.name, "start"))
    return _svg(HEIGHT, parts)


def bars(values: Sequence[tuple[str, float]]) -> str:
    """A horizontal bar for each name."""
    most = max(value for _, value in values)
    left = 170
    parts = []
    for number, (name, value) in enumerate(values):
        y = TOP + 26 * number
        width = value / most * (WIDTH - left - 90)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(_text(left - 8, y + 14, name, "end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="18" fill="{colour}"/>')
        parts.append(_text(left + width + 6, y + 14, f"{value:,.1f}", "start"))
    return _svg(TOP + 26 * len(values) + 8, parts)


def _svg(height: int, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(parts)}</svg>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" stroke-opacity="0.2"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
