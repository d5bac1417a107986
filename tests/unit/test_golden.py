"""The golden Open-Jev requests: prompt text, token ids and answers, to the last digit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adjudge.families import ModelCard
from adjudge.families.calibration import choice_confidence, level_mean, score_confidence, softmax
from adjudge.families.open_jev import OpenJev
from adjudge.tokenizer import Tokenizer
from adjudge.wire import parse_request, response_to

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "open_jev_golden.json").read_text())
T = 2.5343690298472983


def family(temperature: float) -> OpenJev:
    card = ModelCard(
        name="ZefanCai/Open-Jev-27B-v1.1",
        family="open_jev",
        base="Qwen/Qwen3.8-27B",
        calibration={"temperature": temperature},
    )
    return OpenJev(card)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: "+".join(case["request"]["questions"]))
def test_golden_request(case: dict[str, Any], qwen: Tokenizer) -> None:
    model = family(case["temperature"])
    request = parse_request(json.dumps(case["request"]).encode())
    compiled = model.compile(request)
    texts = [text for question in case["prompts"] for text in question]
    ids = [row for question in case["ids"] for row in question]
    logits = [np.float32([score]) for question in case["logits"] for score in question]

    for prompt, text in zip(compiled.prompts, texts, strict=True):
        wrapped = (
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
        assert "".join(str(segment) for segment in prompt.segments) == wrapped
    encoded = [row.tolist() for row in qwen.encode_prompts(compiled.prompts)]
    assert encoded == ids

    response = model.answer(compiled, logits, [len(row) for row in ids], {})
    body = response_to(response)
    assert body["answers"] == case["answers"]
    assert list(body["answers"]) == list(case["request"]["questions"])
    for name, answer in case["answers"].items():
        assert list(body["answers"][name]["probabilities"]) == list(answer["probabilities"])
    assert body["usage"] == {"input_tokens": sum(map(len, ids)), "output_tokens": 0}


def test_golden_figures() -> None:
    p = softmax([-2.0, -1.0, 0.0], T)
    assert p == [0.21343437444688138, 0.3166841593736535, 0.4698814661794651]
    assert choice_confidence(p) == 0.20482219926919762
    assert level_mean(p) == 1.2564470917325836
    assert score_confidence(p) == 0.0
    assert softmax([-2.0, -1.0], T)[1] == 0.5973836777434065


def test_a_tie_gives_the_first_key_and_no_confidence() -> None:
    p = softmax([0.5, 0.5, -1.0], T)
    assert p.index(max(p)) == 0
    assert choice_confidence(softmax([0.5] * 7, T)) == 0.0
    assert choice_confidence([1.0]) == 1.0
    assert score_confidence([1.0]) == 1.0
