"""Which source a build is: one digest over the package's Python files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import adjudge


def installed_digest() -> str:
    """Hexadecimal SHA-256 of the package that runs."""
    package = Path(adjudge.__file__).parent
    return digest_of(
        {path.relative_to(package).as_posix(): path.read_bytes() for path in package.rglob("*.py")}
    )


def digest_of(sources: Mapping[str, bytes]) -> str:
    """The same of files by their path in the package."""
    total = hashlib.sha256()
    for path, content in sorted(sources.items()):
        total.update(f"{path}\0".encode())
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()
