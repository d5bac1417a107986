"""Numbers for checkpoints that are made here: the released ones where they are public."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from adjudge.errors import CheckpointError

OPEN_JEV_TEMPERATURE = 1.8969118766347646

SLOT_LABELS = ("false", "true", *"012345", *string.ascii_uppercase[:16])
"""JEV-VL's 24 slots: two of a noul, six of a score, sixteen of a choice."""


def made_calibration(family: str, tokenizer: Path) -> dict[str, Any]:
    """What `ModelCard.calibration` of a family holds. Raises CheckpointError."""
    return _MADE[family](tokenizer)


def _jev_vl(tokenizer: Path) -> dict[str, Any]:
    known = tokenizers.Tokenizer.from_file(str(tokenizer))
    ids = [known.token_to_id(label) for label in SLOT_LABELS]
    if None in ids:
        missing = SLOT_LABELS[ids.index(None)]
        raise CheckpointError(f"{tokenizer}: {missing!r} is no token; JEV-VL reads it as a label")
    return {
        "temperatures": {"choice": 0.984, "noul": 1.0022, "score": 1.0122},
        "verbalizer_ids": ids,
        "biases": [round(0.4 - 0.03 * slot, 2) for slot in range(len(SLOT_LABELS))],
    }


_MADE: dict[str, Callable[[Path], dict[str, Any]]] = {
    "open_jev": lambda tokenizer: {"temperature": OPEN_JEV_TEMPERATURE},
    "cua_s1": lambda tokenizer: {},
    "decider": lambda tokenizer: {
        "temperature_by_type": {"choice": 1.164, "noul": 1.624, "score": 1.124}
    },
    "jemm": lambda tokenizer: {"temperature": 1.3480874155659591},
    "jev_vl": _jev_vl,
}
