"""Weights read straight onto a device: the CPU's bits, checked there; random ones made there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adjudge.checkpoint import GEOMETRIES, open_checkpoint
from adjudge.checkpoint.make import write_checkpoint
from adjudge.checkpoint.synthetic import RandomWeights
from adjudge.errors import CheckpointError

DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("family", ["open_jev", "jev_vl"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_device_gets_the_bits_of_a_cpu(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    folder = write_checkpoint(tmp_path / "package", family=family)
    here, there = open_checkpoint(folder).weights, open_checkpoint(folder).weights
    for name in here.names():
        read = there.read(name, device=DEVICE, dtype=dtype)
        assert read.device == DEVICE and read.dtype == dtype
        assert torch.equal(read.cpu(), here.read(name, device="cpu", dtype=dtype)), name
    there.finish(here.names(), {})


def test_a_value_that_is_not_finite_is_found_there(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "package")
    key = "model.language_model.layers.0.mlp.up_proj.weight"
    tensors = load_file(folder / "model.safetensors")
    tensors[key][-1, -1] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    weights = open_checkpoint(folder).weights
    with pytest.raises(CheckpointError, match=r"up_proj\.weight: holds a value that is not finite"):
        weights.read("layers.0.mlp.up_proj.weight", device=DEVICE, dtype=torch.bfloat16)


def test_random_weights_are_made_on_the_device_alone() -> None:
    """The same every time, and never larger on the device than the tensor itself."""
    one, two = (RandomWeights(GEOMETRIES["9b"], seed=0) for _ in range(2))
    name = "layers.0.mlp.up_proj.weight"
    first = one.read(name, device=DEVICE, dtype=torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    again = two.read(name, device=DEVICE, dtype=torch.bfloat16)
    assert torch.cuda.max_memory_allocated() - before < 1.1 * again.nbytes
    assert torch.equal(first, again)
    assert again.float().std().item() == pytest.approx(4096**-0.5, rel=0.01)
