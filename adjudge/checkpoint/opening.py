"""Which layout a folder has, told by its files, and the checkpoint in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from adjudge.checkpoint.base_folder import has_random_weights
from adjudge.checkpoint.contents import Checkpoint
from adjudge.checkpoint.export import CARD_FILE, open_export
from adjudge.checkpoint.label_rows import (
    open_cua_s1,
    open_decider,
    open_jemm,
    open_jev_vl,
)
from adjudge.checkpoint.open_jev import MERGED_FILE, open_merged, open_package
from adjudge.config import AdapterMode
from adjudge.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Layout:
    """A way in which a checkpoint lies in a folder.

    markers: the files that tell it, of which the first one found counts. open: gets the marker's
    folder and, where takes_base, the base model's, if there is one.
    """

    what: str
    markers: tuple[str, ...]
    open: Callable[[Path, Path | None, AdapterMode], Checkpoint]
    takes_base: bool = False

    def find(self, folder: Path) -> Path | None:
        """The marker that the folder holds, if any."""
        paths = (folder / marker for marker in self.markers)
        return next((path for path in paths if path.is_file()), None)


LAYOUTS = (
    Layout("our export", (CARD_FILE,), lambda folder, base, mode: open_export(folder, mode)),
    Layout(
        "a merged Open-Jev export",
        (MERGED_FILE,),
        lambda folder, base, mode: open_merged(folder),
    ),
    Layout(
        "an Open-Jev package",
        ("package/checkpoint/model.json", "checkpoint/model.json", "model.json"),
        open_package,
        takes_base=True,
    ),
    Layout("a Cua-S1 adapter", ("text/adapter_config.json",), open_cua_s1, takes_base=True),
    Layout(
        "a Decider model",
        ("decider_config.json",),
        lambda folder, base, mode: open_decider(folder),
    ),
    Layout("a JEMM adapter", ("decision_config.json",), open_jemm, takes_base=True),
    Layout(
        "a JEV-VL model",
        ("adapter_vllm/decision_head.json",),
        lambda folder, base, mode: open_jev_vl(folder.parent, mode),
    ),
)
"""No folder may have the markers of two."""


def open_checkpoint(
    path: str | Path, *, adapter: AdapterMode = "auto", base: str | Path | None = None
) -> Checkpoint:
    """Opens a model folder: reads every header, checks every name, shape and dtype.

    adapter: what becomes of a LoRA. base: the base model's folder, for an adapter that is
    published without it; a `config.json` in `path` itself makes `path` the base. Raises
    CheckpointError naming file and key.
    """
    folder = Path(path)
    layout, marker = _layout(folder)
    if base is not None and not layout.takes_base:
        raise CheckpointError(
            f"{folder}: {layout.what} brings all its weights; no base belongs to it"
        )
    beside = folder if (folder / "config.json").is_file() else None
    opened = layout.open(marker.parent, beside if base is None else Path(base), adapter)
    if has_random_weights(folder if base is None else Path(base)):
        opened = replace(opened, card=replace(opened.card, random_weights=True))
    if adapter == "unmerged" and not opened.weights.deltas():
        raise CheckpointError(
            f"{folder}: {layout.what} without an adapter apart from its weights; it cannot be "
            "kept unmerged"
        )
    return opened


def takes_base(path: str | Path) -> bool:
    """Whether the folder's layout has its base model in a folder of its own, or may have.

    Raises CheckpointError where it has no layout.
    """
    return _layout(Path(path))[0].takes_base


def _layout(folder: Path) -> tuple[Layout, Path]:
    """The folder's one layout and the marker that tells it. Raises CheckpointError."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such model folder")
    found = [(layout, at) for layout in LAYOUTS if (at := layout.find(folder)) is not None]
    if not found:
        known = "; ".join(f"{layout.what} ({' or '.join(layout.markers)})" for layout in LAYOUTS)
        raise CheckpointError(f"{folder}: {_unknown(folder)}; known layouts: {known}")
    if len(found) > 1:
        names = " and ".join(str(marker.relative_to(folder)) for _, marker in found)
        raise CheckpointError(f"{folder}: ambiguous: it holds {names}")
    return found[0]


def _unknown(folder: Path) -> str:
    if (folder / "config.json").is_file():
        return (
            "a plain model without a decision head; it is the base of a package, not a checkpoint"
        )
    return "no known layout"
