"""`adjudge serve` with a fake engine: python tests/fake_server.py FOLDER [SETTING=JSON …].

A test steers it by files in the folder: it loads while `loading` is there, then refuses the model
if `refuse` is, or the device if `unsound` is; compiling waits while `compiling` is there, a pass
while `held` is; and `break` names what a pass does instead of answering: unsound, dies, stalls, or
wrong (its answers depend on the batch). It touches `loading-began`, `compiling-began` and
`pass-began`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from adjudge.config import ServiceConfig
from adjudge.engine_door import Item, Pass, Work
from adjudge.errors import CheckpointError, DeviceError
from adjudge.service import serve
from adjudge.wire import Request
from tests.fake_engine import FakeEngine

LOOK_SECONDS = 0.01


class EndOfThread(BaseException):
    """What no `except Exception` catches."""


class SteeredEngine(FakeEngine):
    def __init__(self, folder: Path) -> None:
        super().__init__(record=False)
        self._folder = folder
        (folder / "loading-began").touch()
        self._while("loading")
        if (folder / "refuse").exists():
            raise CheckpointError("head.pt: the key bias is missing")
        if (folder / "unsound").exists():
            raise DeviceError("the self-check failed for down at 64 rows")

    def _while(self, name: str) -> None:
        pause = threading.Event()
        while (self._folder / name).exists():
            pause.wait(LOOK_SECONDS)

    def compile(self, request: Request) -> Work:
        (self._folder / "compiling-began").touch()
        self._while("compiling")
        return super().compile(request)

    def run(self, plan: Sequence[Item]) -> Pass:
        (self._folder / "pass-began").touch()
        self._while("held")
        wish = self._folder / "break"
        kind = wish.read_text() if wish.exists() else ""
        if kind == "unsound":
            raise DeviceError("an illegal address was read")
        if kind == "dies":
            raise EndOfThread
        if kind == "stalls":
            threading.Event().wait()
        found = super().run(plan)
        if kind == "wrong":
            return replace(found, logits=[logits + len(plan) for logits in found.logits])
        return found


def main() -> int:
    folder = Path(sys.argv[1])
    settings = {
        name: json.loads(text) for name, _, text in (w.partition("=") for w in sys.argv[2:])
    }
    config = ServiceConfig(**{"port": 0, "ready_grace_ms": 0, "log_format": "json"} | settings)
    return serve(lambda: SteeredEngine(folder), config)


if __name__ == "__main__":
    sys.exit(main())
