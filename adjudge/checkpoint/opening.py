"""Which layout a folder has, told by its files, and the checkpoint in it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from adjudge.checkpoint.contents import Checkpoint
from adjudge.checkpoint.export import CARD_FILE, open_export
from adjudge.checkpoint.open_jev import MERGED_FILE, open_merged, open_package, package_folder
from adjudge.errors import CheckpointError

AdapterMode = Literal["merged", "unmerged"]

LAYOUTS = (
    f"our export ({CARD_FILE})",
    f"a merged Open-Jev export ({MERGED_FILE})",
    "an Open-Jev package (model.json in the folder, in checkpoint/ or in package/checkpoint/)",
)


def open_checkpoint(
    path: str | Path, *, adapter: AdapterMode = "merged", base: str | Path | None = None
) -> Checkpoint:
    """Opens a model folder: reads every header, checks every name, shape and dtype.

    adapter: fold a LoRA into the weights as they are read, or keep it apart. base: the base
    model's folder, for a package that does not bring it; a `config.json` beside the package
    makes the package's own folder the base. Raises CheckpointError naming file and key.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: not a folder")
    package = package_folder(folder)
    markers = {CARD_FILE: (folder / CARD_FILE).is_file()}
    markers[MERGED_FILE] = (folder / MERGED_FILE).is_file()
    markers["model.json"] = package is not None
    found = [marker for marker, there in markers.items() if there]
    if len(found) > 1:
        raise CheckpointError(f"{folder}: ambiguous: it holds {' and '.join(found)}")
    if package is not None:
        beside = folder if (folder / "config.json").is_file() else None
        base_folder = beside if base is None else Path(base)
        return open_package(package, base_folder, merged=adapter == "merged")
    if not found:
        raise CheckpointError(f"{folder}: {_unknown(folder)}; known layouts: {'; '.join(LAYOUTS)}")
    if base is not None:
        raise CheckpointError(
            f"{folder}: brings all its weights ({found[0]}); no base belongs to it"
        )
    if found == [CARD_FILE]:
        opened = open_export(folder, merged=adapter == "merged")
    else:
        opened = open_merged(folder)
    if adapter == "unmerged" and not opened.weights.deltas():
        raise CheckpointError(
            f"{folder}: its adapter is already merged into the weights; it cannot be kept unmerged"
        )
    return opened


def _unknown(folder: Path) -> str:
    if (folder / "config.json").is_file():
        return (
            "a plain model without a decision head; it is the base of a package, not a checkpoint"
        )
    return "no known layout"
