"""Cards of every family as a loader would fill them, and answers to made-up logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjudge.families import Compiled, Family, ModelCard
from adjudge.tokenizer import Tokenizer
from adjudge.wire import Response

VERBALIZERS = ["false", "true", *"012345", *"ABCDEFGHIJKLMNOP"]


def card_for(family: str, tokenizer: Tokenizer) -> ModelCard:
    calibration: dict[str, dict[str, Any]] = {
        "open_jev": {"temperature": 1.5},
        "cua_s1": {},
        "decider": {"temperature_by_type": {"choice": 1.164, "noul": 1.624, "score": 1.124}},
        "jemm": {"temperature": 1.3480874159655591},
        "jev_vl": {
            "temperatures": {"noul": 1.0143, "choice": 1.0161, "score": 1.0036},
            "verbalizer_ids": [tokenizer.id_of(text) for text in VERBALIZERS],
            "biases": [0.0] * 24,
        },
    }
    return ModelCard(
        name=f"house/{family}-Model", family=family, revision="abc", calibration=calibration[family]
    )


def answer(family: Family, compiled: Compiled, logits: list[Any]) -> Response:
    rows = [np.array(row, dtype=np.float32) for row in logits]
    return family.answer(compiled, rows, [10] * len(rows), {"inference_seconds": 0.5})
