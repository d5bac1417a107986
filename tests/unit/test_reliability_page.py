"""docs/reliability.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(\w+/test_\w+\.py)::(\w+)`", PAGE)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "seen failing" not in line]


def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_named_test_is_there() -> None:
    missing = [f"{file}::{name}" for file, name in NAMED if name not in functions(file)]
    assert missing == []


def test_every_line_has_tests_and_how_they_were_seen_failing() -> None:
    assert len(ROWS) > 50
    assert len(NAMED) == PAGE.count("::")
    for row in ROWS:
        _, line, tests, how, _ = re.split(r" ?(?<!\\)\| ?", row)
        assert line and how
        assert re.fullmatch(r"`[\w/.:]+`(<br>`[\w/.:]+`)*", tests), row
