"""The rules of the house that a machine can check: sizes, names, direction of imports, torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "adjudge"
SOURCES = sorted(
    path
    for room in ("adjudge", "bench", "tests", "scripts")
    for path in (ROOT / room).rglob("*.py")
)
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}

TORCH_FREE = {"wire", "errors", "config", "origins", "families", "forest", "tokenizer"}
TORCH_FREE |= {"compiler", "layout", "scheduler", "service", "engine_door", "commands", "cli"}
TORCH_FREE |= {"prefixes", "graft", "reuse", "tiles", "sources"}

RANKS = [
    {"errors", "ops", "progress", "sources"},
    {"config", "wire"},
    {"origins", "families", "forest", "device"},
    {"tokenizer", "engine_door", "tiles", "buckets"},
    {"compiler", "prefixes", "graft", "layout"},
    {"checkpoint", "reuse"},
    {"demo", "memory", "device_tables", "state"},
    {"models", "heads"},
    {"graphs", "self_check"},
    {"executor"},
    {"scheduler"},
    {"engine", "service"},
    {"proof", "dry_run"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
"""Rooms from the ground up: a room imports from its own rank's own room or from lower ranks."""


def module_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES if path.is_relative_to(PACKAGE)}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(module: str) -> Iterator[str]:
    """Modules imported anywhere in the file, type-checking blocks left out."""
    pending: list[ast.AST] = [ast.parse(MODULES[module].read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        pending += ast.iter_child_nodes(node)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_is_short_and_named_for_what_it_holds(path: Path) -> None:
    most = 600 if "triton" in path.stem else 500
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most
    assert not VAGUE & set(path.relative_to(ROOT).with_suffix("").parts)


def test_every_room_has_a_rank() -> None:
    ranked = set().union(*RANKS)
    assert {room_of(module) for module in MODULES} - {""} <= ranked


@pytest.mark.parametrize("module", sorted(MODULES))
def test_dependencies_point_one_way(module: str) -> None:
    room = room_of(module)
    if not room:
        return
    rank = next((index for index, rooms in enumerate(RANKS) if room in rooms), None)
    assert rank is not None, f"{room} has no rank"
    below = {room}.union(*RANKS[:rank])
    taken = {room_of(name) for name in imports(module) if name.startswith("adjudge.")}
    assert taken <= below, f"{module} imports {sorted(taken - below)}"


def test_ops_import_nothing_of_ours() -> None:
    for module in MODULES:
        if room_of(module) == "ops":
            ours = {name for name in imports(module) if name.startswith("adjudge")}
            assert all(name.startswith("adjudge.ops") for name in ours), module


def test_torch_free_rooms_never_load_torch() -> None:
    modules = [module for module in MODULES if room_of(module) in TORCH_FREE or "." not in module]
    program = "\n".join(
        ["import sys", *(f"import {module}" for module in modules), "print('torch' in sys.modules)"]
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "False", done.stderr


def test_importing_the_package_is_light() -> None:
    program = "import sys, adjudge; print(sorted({'torch', 'numpy', 'msgspec'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    import adjudge

    assert adjudge.__all__ == [
        "AdjudgeError",
        "Engine",
        "EngineConfig",
        "ServiceConfig",
        "__version__",
    ]
    assert dir(adjudge) == sorted(adjudge.__all__)


def test_every_setting_is_read_somewhere() -> None:
    from adjudge.config import SECTIONS, kinds

    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for module, path in MODULES.items()
        if room_of(module) not in {"config", "origins", "dry_run"}
    )
    names = [name for section in SECTIONS.values() for name in kinds(section)]
    assert [name for name in names if f"config.{name}" not in sources] == []
