"""What a build is made of: one digest over the package's Python files, and its libraries."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import adjudge

LIBRARIES = (
    *("torch", "triton", "numpy", "tokenizers", "safetensors", "msgspec", "starlette", "uvicorn"),
    *("transformers", "peft", "fla-core", "flash-attn", "nvidia-cublas", "nvidia-cublas-cu12"),
)
"""Packages whose versions can change a result. Absent ones are left out."""


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


def libraries() -> dict[str, str]:
    """Installed versions of LIBRARIES, and of the CUDA runtime that a loaded torch was made for."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found
