"""Fast, exact serving for decision models.

The public names below are all there is; importing the package loads none of them. `Engine` brings
torch with it, and so does nothing else here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.config import EngineConfig, ServiceConfig
    from adjudge.engine import Engine
    from adjudge.errors import AdjudgeError

__version__ = "0.1.0"

_HOMES = {
    "AdjudgeError": "adjudge.errors",
    "Engine": "adjudge.engine",
    "EngineConfig": "adjudge.config",
    "ServiceConfig": "adjudge.config",
}

__all__ = ["AdjudgeError", "Engine", "EngineConfig", "ServiceConfig", "__version__"]


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'adjudge' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
