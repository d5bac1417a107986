"""Random weights: the same ones every time, and alive through the depth of a real model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextConfig, Qwen3_5TextModel

from adjudge.checkpoint import GEOMETRIES, TextConfig, random_checkpoint
from adjudge.checkpoint.made_base import SMALL
from adjudge.checkpoint.synthetic import RandomWeights
from adjudge.checkpoint.tensor_names import text_tensors
from adjudge.errors import CheckpointError


def read(weights: RandomWeights, name: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return weights.read(name, device="cpu", dtype=dtype)


def test_a_tensor_depends_on_seed_and_name_only() -> None:
    one, two, other = (RandomWeights(SMALL, seed=seed) for seed in (3, 3, 4))
    names = sorted(one.names())
    forward = {name: read(one, name) for name in names}
    for name in reversed(names):
        assert torch.equal(read(two, name), forward[name]), name
        assert not torch.equal(read(other, name), forward[name]), name
        assert torch.equal(read(two, name, torch.float32), forward[name].float())
    up, gate = (forward[f"layers.0.mlp.{part}_proj.weight"] for part in ("up", "gate"))
    assert not torch.equal(up, gate)


def test_accounting_holds_for_random_weights() -> None:
    weights = RandomWeights(SMALL, seed=0)
    with pytest.raises(CheckpointError, match=r"random weights: embed_tokens\.weight: not read"):
        weights.finish(set(), {})
    with pytest.raises(CheckpointError, match="no tensor lm_head"):
        read(weights, "lm_head.weight")


def repeated(rounds: int, *, tied: bool) -> TextConfig:
    return replace(
        SMALL,
        num_hidden_layers=4 * rounds,
        layer_types=SMALL.layer_types * rounds,
        tie_word_embeddings=tied,
    )


@pytest.mark.parametrize("tied", [True, False])
def test_activations_keep_their_size_through_64_layers(tied: bool) -> None:
    config = repeated(16, tied=tied)
    weights = RandomWeights(config, seed=0)
    model = Qwen3_5TextModel(Qwen3_5TextConfig(**config.to_json())).float().eval()
    names = weights.names() - {"lm_head.weight"}
    model.load_state_dict({name: read(weights, name, torch.float32) for name in names})
    ids = torch.arange(1, 101)[None] * 7 % 1000
    changed = ids.clone()
    changed[0, 50] += 1
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
        moved = model(changed).last_hidden_state[0] - states[-1][0]
    start, end = states[0].std().item(), states[-2].std().item()
    assert start == pytest.approx(128**-0.5 if tied else 1.0, rel=0.1)
    assert 1.05 < end / start < 2
    assert states[-1].std().item() == pytest.approx(1, rel=0.05)
    size = states[-1][0].norm(dim=-1)
    assert (moved[:50] == 0).all()
    assert ((moved.norm(dim=-1) / size)[50:] > 1e-4).all()


@pytest.mark.parametrize("name", GEOMETRIES)
def test_parameter_counts_of_released_sizes(name: str) -> None:
    """GEMM weights of the 9B and 27B are given in the design: 13.84 GB and 48.70 GB in BF16."""
    shapes = text_tensors(GEOMETRIES[name])
    matrices = sum(a * b for key, (a, b) in _matrices(shapes).items() if key.startswith("layers"))
    expected = {"9b": 13.84e9, "27b": 48.70e9}.get(name)
    if expected is not None:
        assert 2 * matrices == pytest.approx(expected, rel=2e-3)
    assert ("lm_head.weight" in shapes) == (name in ("9b", "27b"))


def _matrices(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    return {key: (shape[0], shape[1]) for key, shape in shapes.items() if len(shape) == 2}


def test_random_checkpoint_brings_everything() -> None:
    checkpoint = random_checkpoint("0.8b", seed=1, num_layers=4)
    assert checkpoint.card.random_weights
    assert checkpoint.text_config == GEOMETRIES["0.8b"].with_layers(4)
    assert checkpoint.head is not None
    assert checkpoint.head.weight.shape == (1024,)
    assert checkpoint.head.weight.dtype == torch.float32
    assert checkpoint.tokenizer_path is not None
    assert checkpoint.tokenizer_path.is_file()
    with pytest.raises(CheckpointError, match=r"no geometry '3b'; known: 0\.8b, 2b"):
        random_checkpoint("3b")
