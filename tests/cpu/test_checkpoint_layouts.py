"""The three Open-Jev layouts: equal weights from each, PEFT's merge, who else reads them."""

from __future__ import annotations

import shutil
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from adjudge.checkpoint import Checkpoint, open_checkpoint, write_export
from adjudge.checkpoint.made_base import small_config
from adjudge.checkpoint.made_calibration import OPEN_JEV_TEMPERATURE
from adjudge.checkpoint.make import ALPHA, RANK, TARGETS, write_checkpoint
from adjudge.errors import CheckpointError

UNTIED = small_config("bytes", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("layouts")
    made = {
        layout: write_checkpoint(place / layout, layout=layout, config=UNTIED, shard_bytes=300_000)
        for layout in ("package", "merged", "adjudge")
    }
    made["float32"] = write_checkpoint(place / "float32", config=UNTIED, dtype=torch.float32)
    return made


def tensors(checkpoint: Checkpoint, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, read once, and the accounting closed."""
    weights = checkpoint.weights
    read = {name: weights.read(name, device="cpu", dtype=dtype) for name in weights.names()}
    for name in weights.deltas():
        weights.lora(name)
    weights.finish(set(read), {})
    return read


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("layout", ["merged", "adjudge"])
def test_layouts_hold_equal_checkpoints(folders: dict[str, Path], layout: str) -> None:
    package, other = open_checkpoint(folders["package"]), open_checkpoint(folders[layout])
    expected = tensors(package)
    if layout == "merged":  # saved from the text model alone
        del expected["lm_head.weight"]
    assert_equal(expected, tensors(other))
    assert package.head and other.head
    assert torch.equal(package.head.weight, other.head.weight)
    assert torch.equal(package.head.bias, other.head.bias)
    assert package.text_config == other.text_config == UNTIED
    assert package.card == other.card
    assert package.card.random_weights
    assert package.card.calibration == {"temperature": OPEN_JEV_TEMPERATURE}


def test_package_apart_from_its_base(folders: dict[str, Path], tmp_path: Path) -> None:
    package, base = tmp_path / "package", tmp_path / "base"
    shutil.copytree(folders["package"] / "package", package)
    shutil.copytree(folders["package"], base, ignore=shutil.ignore_patterns("package"))
    expected = tensors(open_checkpoint(folders["package"]))
    for place in (package, package / "checkpoint"):
        assert_equal(tensors(open_checkpoint(place, base=base)), expected)


def test_unmerged_keeps_the_base_and_gives_the_deltas(folders: dict[str, Path]) -> None:
    kept = open_checkpoint(folders["package"], adapter="unmerged")
    assert len(kept.weights.deltas()) == 4 * 1 + 2 * 3
    name = "layers.3.self_attn.q_proj.weight"
    delta = kept.weights.lora(name)
    assert delta is not None and delta.scale == ALPHA / RANK
    base = kept.weights.read(name, device="cpu", dtype=torch.float32)
    merged = open_checkpoint(folders["package"]).weights.read(
        name, device="cpu", dtype=torch.float32
    )
    expected = (base + delta.scale * (delta.b @ delta.a)).bfloat16().float()
    assert torch.equal(merged, expected)
    assert not torch.equal(merged, base)
    assert kept.weights.lora("layers.0.mlp.up_proj.weight") is None


@pytest.mark.parametrize("adapter", ["merged", "unmerged"])
def test_export_of_an_unmerged_checkpoint_opens_both_ways(
    folders: dict[str, Path], tmp_path: Path, adapter: str
) -> None:
    kept = open_checkpoint(folders["package"], adapter="unmerged")
    export = write_export(kept, tmp_path / "export")
    there = open_checkpoint(export, adapter=adapter)
    here = open_checkpoint(folders["package"], adapter=adapter)
    assert there.weights.deltas() == here.weights.deltas()
    for name in there.weights.deltas():
        mine, theirs = here.weights.lora(name), there.weights.lora(name)
        assert mine and theirs and mine.scale == theirs.scale
        assert torch.equal(mine.a, theirs.a) and torch.equal(mine.b, theirs.b)
    for name in there.weights.names():
        pair = [c.weights.read(name, device="cpu", dtype=torch.bfloat16) for c in (here, there)]
        assert torch.equal(*pair), name


def test_merge_is_pefts(folders: dict[str, Path]) -> None:
    """On an FP32 base, where PEFT too adds in FP32: equal to the last bit."""
    package = folders["float32"] / "package" / "checkpoint" / "adapter"
    config = Qwen3_5TextConfig(**UNTIED.to_json())
    model = Qwen3_5ForCausalLM(config).float()
    base = open_checkpoint(folders["float32"], adapter="unmerged").weights
    state = {
        name if name.startswith("lm_head.") else f"model.{name}": base.read(
            name, device="cpu", dtype=torch.float32
        )
        for name in base.names()
    }
    model.load_state_dict(state)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS))
    )
    pairs = load_file(package / "adapter_model.safetensors")
    renamed = {key.replace("model.layers.", "model.model.layers."): pairs[key] for key in pairs}
    missing = peft.set_peft_model_state_dict(adapted, renamed)
    assert not missing.unexpected_keys
    theirs = adapted.merge_and_unload().state_dict()
    ours = tensors(open_checkpoint(folders["float32"]), torch.float32)
    for name, tensor in ours.items():
        key = name if name.startswith("lm_head.") else f"model.{name}"
        assert torch.equal(theirs[key], tensor), name


def test_transformers_reads_our_export(folders: dict[str, Path]) -> None:
    model = Qwen3_5ForCausalLM.from_pretrained(folders["adjudge"], dtype=torch.bfloat16)
    state = model.state_dict()
    for name, tensor in tensors(open_checkpoint(folders["adjudge"])).items():
        key = name if name.startswith("lm_head.") else f"model.{name}"
        assert torch.equal(state[key], tensor), name


def test_safetensors_reads_our_files(folders: dict[str, Path]) -> None:
    stored: dict[str, torch.Tensor] = {}
    for shard in sorted(folders["package"].glob("model-*.safetensors")):
        stored |= load_file(shard)
    kept = open_checkpoint(folders["package"], adapter="unmerged").weights
    for name in kept.names():
        key = name if name.startswith("lm_head.") else f"model.language_model.{name}"
        read = kept.read(name, device="cpu", dtype=torch.float32)
        assert torch.equal(read, stored[key].bfloat16().float()), name


def test_float32_tensors_of_a_bfloat16_base_are_rounded(folders: dict[str, Path]) -> None:
    """A_log is stored in FP32 with values that BF16 lacks; an FP32 engine sees it rounded."""
    name = "layers.0.linear_attn.A_log"
    rounded, exact = (
        open_checkpoint(folders[key]).weights.read(name, device="cpu", dtype=torch.float32)
        for key in ("package", "float32")
    )
    assert torch.equal(rounded, exact.bfloat16().float())
    assert not torch.equal(rounded, exact)


def test_every_tensor_is_accounted_for(folders: dict[str, Path]) -> None:
    weights = open_checkpoint(folders["adjudge"]).weights
    read = weights.names() - {"lm_head.weight", "norm.weight"}
    for name in read:
        weights.read(name, device="cpu", dtype=torch.bfloat16)
    why = {"lm_head.": "read through a scoring head"}
    with pytest.raises(CheckpointError, match=r"safetensors: model\.norm\.weight: not read"):
        weights.finish(read, why)
    with pytest.raises(CheckpointError, match=r"norm\.weight: said to be used, but never read"):
        weights.finish(read | {"norm.weight"}, why)
    weights.read("norm.weight", device="cpu", dtype=torch.bfloat16)
    weights.finish(read | {"norm.weight"}, why)
    weights.read("norm.weight", device="cpu", dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"norm\.weight: read 2 times"):
        weights.finish(read, why)


def test_a_delta_that_nobody_applies_is_an_error(folders: dict[str, Path]) -> None:
    weights = open_checkpoint(folders["package"], adapter="unmerged").weights
    for name in weights.names():
        weights.read(name, device="cpu", dtype=torch.bfloat16)
    with pytest.raises(
        CheckpointError, match=r"adapter_model\.safetensors: the LoRA of layers\.\d.*not read"
    ):
        weights.finish(weights.names(), {})


def test_rows_of_a_matrix(folders: dict[str, Path]) -> None:
    """Label rows are FP32 and take a merged delta before any rounding."""
    name = "layers.3.self_attn.q_proj.weight"
    kept = open_checkpoint(folders["package"], adapter="unmerged").weights
    merged = open_checkpoint(folders["package"]).weights
    delta = kept.lora(name)
    assert delta is not None
    whole = kept.read(name, device="cpu", dtype=torch.float32) + delta.scale * (delta.b @ delta.a)
    ids = [5, 0, 5]
    for weights in (merged, kept):
        rows = weights.rows(name, ids, device="cpu")
        assert rows.dtype == torch.float32
        torch.testing.assert_close(rows, whole[ids], rtol=0, atol=1e-7)
        assert not torch.equal(rows, rows.bfloat16().float())
