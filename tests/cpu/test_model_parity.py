"""The model against transformers: hidden states, rotary axes, adapters merged and kept apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from adjudge.checkpoint.contents import Lora
from adjudge.checkpoint.text_config import LINEAR, TextConfig
from adjudge.errors import CheckpointError
from adjudge.models.qwen3_5 import Qwen3_5
from tests.small_models import (
    CPU,
    LIKE_9B,
    RATIOS,
    Adapted,
    distance,
    hidden,
    ours,
    tables_of,
    their_hidden,
    theirs,
    token_ids,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers and PEFT warn of what they lack
    pytest.mark.usefixtures("quiet_transformers"),
]

MOST_DISTANCE = 2e-5
"""FP32, relative L2 of a hidden state."""

MOST_RATIO = 1.2
"""BF16: our distance to FP32 over that of transformers in BF16."""

LENGTHS = (1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 449, 700)
ENDS = tuple(range(1, 701, 9))

ratios = pytest.mark.parametrize("config", RATIOS.values(), ids=RATIOS)


@ratios
def test_fp32_hidden_states_of_every_length(config: TextConfig) -> None:
    ids = token_ids(0, 700)
    expected = their_hidden(theirs(config, torch.float32), ids)
    model = ours(config, torch.float32)
    for count in LENGTHS:
        (found,) = hidden(model, [ids[:count]])
        assert distance(found, expected[count - 1]) < MOST_DISTANCE, count


@ratios
def test_bf16_is_as_near_to_fp32_as_transformers(config: TextConfig) -> None:
    ids = token_ids(1, 700)
    ends = torch.tensor(ENDS) - 1
    exact = their_hidden(theirs(config, torch.float32), ids)[ends]
    reference = their_hidden(theirs(config, torch.bfloat16), ids)[ends]
    found = torch.stack(hidden(ours(config, torch.bfloat16), [ids[:end] for end in ENDS]))
    assert distance(found, exact) < MOST_RATIO * distance(reference, exact)


def test_a_last_layer_without_attention() -> None:
    config = replace(LIKE_9B, num_hidden_layers=2, layer_types=(LINEAR, LINEAR))
    ids = token_ids(2, 150)
    expected = their_hidden(theirs(config, torch.float32), ids)
    found = hidden(ours(config, torch.float32), [ids, ids[:70]])
    assert distance(found[0], expected[-1]) < MOST_DISTANCE
    assert distance(found[1], expected[69]) < MOST_DISTANCE


def test_few_layers_have_all_kinds() -> None:
    config = replace(LIKE_9B, num_hidden_layers=8, layer_types=(*LIKE_9B.layer_types[:4],) * 2)
    model = ours(config, torch.float32)
    few = model.of_each_kind()
    kinds = [type(layer.mixer) for layer in model.layers[2:4]]
    assert [type(layer.mixer) for layer in few.layers] == [*kinds, kinds[1]]
    assert few.layers[-1] is model.layers[-1]
    assert {weight.shape for weight in few.products()} == {w.shape for w in model.products()}


def test_rotary_axes_turn_by_their_own_positions() -> None:
    ids = token_ids(3, 90)
    positions = torch.stack([torch.arange(90), torch.arange(90) // 7, torch.arange(90) % 7 + 3])
    expected = their_hidden(theirs(LIKE_9B, torch.float32), ids, positions)
    model = ours(LIKE_9B, torch.float32)
    tables = replace(tables_of([ids]), positions_3R=positions.int())
    assert distance(model.forward(tables)[0], expected[-1]) < MOST_DISTANCE
    (text,) = hidden(model, [ids])
    assert distance(text, expected[-1]) > 100 * MOST_DISTANCE


def deltas_of(config: TextConfig) -> dict[str, Lora]:
    """A delta of every projection, as large as a tenth of its weight."""
    made = {}
    generator = torch.Generator().manual_seed(5)
    for name, shape in Adapted(config, {}, merged=True).shapes.items():
        if name.startswith("layers.") and "proj" in name:
            a = torch.randn(4, shape[1], generator=generator) * shape[1] ** -0.5
            b = torch.randn(shape[0], 4, generator=generator) * 0.05
            made[name] = Lora(a, b, 2.0)
    return made


def peft_hidden(config: TextConfig, deltas: dict[str, Lora], dtype: torch.dtype) -> Tensor:
    """transformers with PEFT on top, the adapter in FP32 and not merged."""
    from peft import LoraConfig, get_peft_model

    theirs.cache_clear()
    base = theirs(config, dtype)
    theirs.cache_clear()
    targets = sorted({name.split(".")[-2] for name in deltas})
    model = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=8, target_modules=targets), autocast_adapter_dtype=False
    )
    state = {
        f"base_model.model.{name.removesuffix('.weight')}.lora_{part}.default.weight": tensor
        for name, delta in deltas.items()
        for part, tensor in (("A", delta.a), ("B", delta.b))
    }
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    return their_hidden(model, token_ids(4, 150))


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "unmerged"])
def test_lora_against_peft(merged: bool) -> None:
    deltas = deltas_of(LIKE_9B)
    ids = token_ids(4, 150)
    ends = (1, 64, 100, 150)
    at = torch.tensor(ends) - 1
    prompts = [ids[:end] for end in ends]
    exact = peft_hidden(LIKE_9B, deltas, torch.float32)[at]

    def adapted(dtype: torch.dtype) -> Tensor:
        source = Adapted(LIKE_9B, deltas, merged=merged)
        return torch.stack(hidden(Qwen3_5.load(LIKE_9B, source, device=CPU, dtype=dtype), prompts))

    assert distance(adapted(torch.float32), exact) < MOST_DISTANCE
    plain = torch.stack(hidden(ours(LIKE_9B, torch.float32), prompts))
    assert distance(plain, exact) > 0.05
    reference = peft_hidden(LIKE_9B, deltas, torch.bfloat16)[at]
    assert distance(adapted(torch.bfloat16), exact) < MOST_RATIO * distance(reference, exact)


def test_a_misshapen_tensor_is_named() -> None:
    class Wrong(Adapted):
        def read(self, name: str, *, device: torch.device | str, dtype: torch.dtype) -> Tensor:
            tensor = super().read(name, device=device, dtype=dtype)
            return tensor[1:] if name == "layers.3.self_attn.k_proj.weight" else tensor

    with pytest.raises(CheckpointError, match=r"layers\.3\.self_attn\.k_proj\.weight: shape"):
        Qwen3_5.load(LIKE_9B, Wrong(LIKE_9B, {}, merged=True), device=CPU, dtype=torch.float32)


def test_every_tensor_is_accounted_for() -> None:
    class More(Adapted):
        def __init__(self, config: TextConfig) -> None:
            super().__init__(config, {}, merged=True)
            self.shapes = {**self.shapes, "layers.0.extra.weight": (3, 3)}

    with pytest.raises(CheckpointError, match=r"layers\.0\.extra\.weight"):
        Qwen3_5.load(LIKE_9B, More(LIKE_9B), device=CPU, dtype=torch.float32)


def test_loading_reports_progress() -> None:
    seen: list[tuple[str, int, int]] = []
    Qwen3_5.load(
        LIKE_9B,
        Adapted(LIKE_9B, {}, merged=True),
        device=CPU,
        dtype=torch.float32,
        progress=lambda *step: seen.append(step),
    )
    assert [(done, total) for _, done, total in seen] == [(i + 1, 8) for i in range(8)]
    assert np.unique([what for what, _, _ in seen]).size == 1
