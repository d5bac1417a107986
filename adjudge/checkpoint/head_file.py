"""The scoring head as files hold it: a torch state dict, or a safetensors file."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adjudge.checkpoint.adapter import check_finite
from adjudge.checkpoint.contents import Head
from adjudge.checkpoint.safetensors_file import SafetensorsFile
from adjudge.errors import CheckpointError

HEAD_FILE = "head.safetensors"


def read_torch_head(path: Path, hidden_size: int) -> Head:
    """`head.pt`: the state dict of a Linear, `weight` [1, hidden] and `bias` [1], float32.

    Loaded with weights_only: a pickle that names any code is refused, never run.
    """
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: unsafe or broken pickle; a head holds tensors only, and nothing else is "
            "loaded"
        ) from error
    except Exception as error:
        # The unpickler fails in as many ways as a damaged file can be damaged.
        raise CheckpointError(f"{path}: cannot be read as a torch file: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds a {type(found).__name__}, not a state dict")
    return _head(path, found, hidden_size)


def read_head(path: Path, hidden_size: int) -> Head:
    """`head.safetensors`: the same two tensors."""
    file = SafetensorsFile(path)
    found: dict[str, Tensor] = {}
    for key in file.entries:
        with file.view(key) as stored:
            found[key] = stored.clone()
    return _head(path, found, hidden_size)


def head_from_numbers(where: str, weight: Sequence[float], bias: float) -> Head:
    """The head of a JSON file, its numbers already checked for count and finiteness."""
    made = Head(
        torch.tensor(weight, dtype=torch.float64).to(torch.float32),
        torch.tensor(bias, dtype=torch.float64).to(torch.float32),
    )
    check_finite(made.weight, Path(where), "head_weight")
    check_finite(made.bias, Path(where), "head_bias")
    return made


def head_tensors(head: Head) -> dict[str, Tensor]:
    """The tensors that `read_head` and `read_torch_head` take."""
    return {"weight": head.weight.reshape(1, -1), "bias": head.bias.reshape(1)}


def _head(path: Path, found: dict[str, Any], hidden_size: int) -> Head:
    expected = {"weight": (1, hidden_size), "bias": (1,)}
    for key in sorted(expected.keys() - found.keys()):
        raise CheckpointError(f"{path}: {key} is missing")
    for key in sorted(map(str, found.keys() - expected.keys())):
        raise CheckpointError(f"{path}: {key}: not a tensor of a scoring head")
    for key, shape in expected.items():
        tensor = found[key]
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path}: {key} is a {type(tensor).__name__}, not a tensor")
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise CheckpointError(f"{path}: {key}: not a plain tensor with its values in the file")
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{path}: {key}: shape {list(tensor.shape)}; expected {list(shape)}: "
                "the head belongs to a model of another width"
            )
        if tensor.dtype != torch.float32:
            raise CheckpointError(f"{path}: {key}: dtype {tensor.dtype}; expected torch.float32")
        check_finite(tensor, path, key)
    return Head(found["weight"].reshape(-1).clone(), found["bias"].reshape(()).clone())
