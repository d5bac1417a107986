"""Geometries: released sizes, both spellings of the rope fields, and every refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adjudge.checkpoint.text_config import FULL, GEOMETRIES, LINEAR, TextConfig
from adjudge.errors import CheckpointError

NINE = GEOMETRIES["9b"]


def flat(**changes: Any) -> dict[str, Any]:
    """The 9B's config with the older, flat rope fields."""
    values = NINE.to_json()
    rope = values.pop("rope_parameters")
    values |= {"rope_theta": rope["rope_theta"], "partial_rotary_factor": 0.25}
    values["rope_scaling"] = {"type": "default", "mrope_section": [11, 11, 10]}
    return values | changes


@pytest.mark.parametrize("name", GEOMETRIES)
def test_json_round_trip(name: str) -> None:
    assert TextConfig.from_json(GEOMETRIES[name].to_json()) == GEOMETRIES[name]


def test_released_sizes() -> None:
    """Rows of the table in the specification."""
    assert (NINE.num_attention_heads * NINE.head_dim, NINE.rotary_dim) == (4096, 64)
    assert (NINE.key_width, NINE.value_width, NINE.conv_channels) == (2048, 4096, 8192)
    assert [GEOMETRIES[name].layer_types.count(FULL) for name in GEOMETRIES] == [6, 6, 8, 8, 16]
    assert [GEOMETRIES[name].tie_word_embeddings for name in GEOMETRIES] == [True] * 3 + [False] * 2
    assert NINE.layer_types[:5] == (LINEAR, LINEAR, LINEAR, FULL, LINEAR)


def test_text_config_inside_a_multimodal_one() -> None:
    text = NINE.to_json()
    text.pop("tie_word_embeddings")
    outer = {"model_type": "qwen3_5", "tie_word_embeddings": True, "vision_config": {}}
    found = TextConfig.from_json(outer | {"text_config": text})
    assert found == replace(NINE, tie_word_embeddings=True)


def test_flat_rope_fields_and_interval() -> None:
    values = flat(full_attention_interval=4)
    del values["layer_types"]
    assert TextConfig.from_json(values) == NINE


def test_explicit_layer_types_win() -> None:
    kinds = [FULL] + [LINEAR] * 31
    assert TextConfig.from_json(flat(layer_types=kinds)).layer_types == tuple(kinds)


@pytest.mark.parametrize(
    "field, value",
    [
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("attn_output_gate", False),
        ("model_type", "qwen3_5_moe_text"),
        ("model_type", None),
        ("head_dim", 260),
        ("head_dim", 512),
        ("linear_key_head_dim", 12),
        ("linear_value_head_dim", 264),
        ("linear_conv_kernel_dim", 3),
        ("num_attention_heads", 15),
        ("linear_num_value_heads", 24),
        ("layer_types", [LINEAR]),
        ("layer_types", ["sliding_attention"] * 32),
        ("hidden_size", 0),
        ("hidden_size", True),
        ("hidden_size", "4096"),
        ("hidden_size", None),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", -1),
        ("rope_theta", None),
        ("partial_rotary_factor", 1.5),
        ("tie_word_embeddings", "yes"),
        ("text_config", 7),
    ],
)
def test_refusal_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"^here\.json: {field} "):
        TextConfig.from_json(flat(**{field: value}), where="here.json")


@pytest.mark.parametrize(
    "rope, field",
    [
        ({"rope_type": "yarn"}, "rope_type"),
        ({"type": "linear"}, "type"),
        ({"mrope_interleaved": False}, "mrope_interleaved"),
        ({"mrope_section": [11, 11]}, "mrope_section"),
        ({"mrope_section": [11, 11, 1.5]}, "mrope_section"),
    ],
)
def test_refusal_inside_the_rope_object(rope: dict[str, Any], field: str) -> None:
    values = NINE.to_json()
    values["rope_parameters"] |= rope
    with pytest.raises(CheckpointError, match=f"config.json: {field} is"):
        TextConfig.from_json(values)


def test_cut_to_its_first_layers() -> None:
    assert NINE.with_layers(8).layer_types == NINE.layer_types[:8]
    with pytest.raises(CheckpointError, match="num_layers is 33"):
        NINE.with_layers(33)
