"""What a base model's folder says besides its weights: tokenizer, revision, whether it is made."""

from __future__ import annotations

import re
from pathlib import Path

from adjudge.checkpoint.json_file import read_object
from adjudge.errors import CheckpointError

COMMIT = re.compile("[0-9a-f]{40}")
RANDOM_KEY = "adjudge_random_weights"
"""In the config.json of a model that was made here: true, its weights are random."""


def has_random_weights(folder: Path) -> bool:
    """Whether the model in this folder says that it was made here, not trained."""
    path = folder / "config.json"
    return path.is_file() and read_object(path).get(RANDOM_KEY) is True


def tokenizer_file(folder: Path) -> Path:
    """`tokenizer.json` of a model folder; CheckpointError when it has none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; the model's tokenizer.json belongs here")
    return path


def needed_base(base: Path | None, folder: Path, model_id: str, revision: str) -> Path:
    """The base folder of an adapter, which must be given and must not be another revision."""
    if base is None:
        raise CheckpointError(
            f"{folder}: an adapter without its base model; give the folder of {model_id} at "
            f"revision {revision} by --base"
        )
    if not base.is_dir():
        raise CheckpointError(f"{base}: not a folder; the base {model_id} should be here")
    found = downloaded_revision(base / "config.json")
    if found is not None and COMMIT.fullmatch(revision) and found != revision:
        raise CheckpointError(
            f"{folder}: needs revision {revision} of {model_id}, but {base} is revision {found}"
        )
    return base


def downloaded_revision(path: Path) -> str | None:
    """The revision that the download of a file recorded, or None where nothing did.

    A download cache writes it into the path (`…/snapshots/<40 hex>/…`), a download into a plain
    folder as the first line of `.cache/huggingface/download/<file>.metadata` in that folder.
    """
    place = path.absolute()
    for folder in place.parents:
        if folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name):
            return folder.name
        record = folder / ".cache/huggingface/download" / f"{place.relative_to(folder)}.metadata"
        if record.is_file():
            first = record.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
            return first if COMMIT.fullmatch(first) else None
    return None
