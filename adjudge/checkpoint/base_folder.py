"""What a base model's folder says besides its weights: its tokenizer, its revision."""

from __future__ import annotations

import re
from pathlib import Path

from adjudge.errors import CheckpointError

COMMIT = re.compile("[0-9a-f]{40}")


def tokenizer_file(folder: Path) -> Path:
    """`tokenizer.json` of a model folder; CheckpointError when it has none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; the model's tokenizer.json belongs here")
    return path


def snapshot_revision(folder: Path) -> str | None:
    """The revision that a download cache writes into a path (`…/snapshots/<40 hex>/…`)."""
    place = folder.resolve()
    for part in (place, *place.parents):
        if part.parent.name == "snapshots" and COMMIT.fullmatch(part.name):
            return part.name
    return None


def check_revision(base: Path, wanted: str, where: str) -> None:
    """Refuses a base whose path says that it is another revision than the one trained on."""
    found = snapshot_revision(base)
    if found is not None and COMMIT.fullmatch(wanted) and found != wanted:
        raise CheckpointError(f"{where}: revision is {wanted}, but {base} is revision {found}")
