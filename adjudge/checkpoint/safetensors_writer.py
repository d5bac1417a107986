"""Writing safetensors files tensor by tensor: the headers first, from shapes known beforehand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from adjudge.checkpoint.safetensors_file import DTYPES

SHARD_BYTES = 5 << 30
WRITE_BYTES = 8 << 20
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Plan = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Key -> dtype and shape, in the order in which the tensors will be given."""


def num_bytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    return dtype.itemsize * prod(shape)


def write_sharded(
    folder: Path,
    plan: Plan,
    tensor: Callable[[str], Tensor],
    *,
    shard_bytes: int = SHARD_BYTES,
    wrote: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Writes `model.safetensors`, or shards of at most `shard_bytes` with an index.

    tensor: called once per key, in order; one tensor is held at a time. wrote: told the bytes of
    each. A shard holds at least one tensor. Raises OSError.
    """
    shards = list(_shards(plan, shard_bytes))
    if len(shards) == 1:
        write_file(folder / "model.safetensors", plan, tensor, wrote=wrote)
        return
    weight_map: dict[str, str] = {}
    for number, keys in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(keys, name)
        write_file(folder / name, {key: plan[key] for key in keys}, tensor, wrote=wrote)
    total = sum(num_bytes(*described) for described in plan.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_bytes(folder / "model.safetensors.index.json", json.dumps(index, indent=1).encode())


def write_file(
    path: Path,
    plan: Plan,
    tensor: Callable[[str], Tensor],
    *,
    wrote: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """One safetensors file, synced to the disk. Raises OSError; ValueError when `tensor` gives
    another dtype or shape than planned."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, (dtype, shape) in plan.items():
        first, end = end, end + num_bytes(dtype, shape)
        header[key] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [first, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key, (dtype, shape) in plan.items():
            made = tensor(key)
            if made.dtype != dtype or tuple(made.shape) != shape:
                raise ValueError(f"{key}: planned {dtype} {shape}, given {made.dtype}")
            flat = made.contiguous().reshape(-1).view(torch.uint8).numpy()
            for place in range(0, flat.size, WRITE_BYTES):
                file.write(flat[place : place + WRITE_BYTES].data)
            wrote(flat.size)
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, text: bytes) -> None:
    """A small file, synced to the disk. Raises OSError."""
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _shards(plan: Plan, shard_bytes: int) -> Iterator[list[str]]:
    keys: list[str] = []
    size = 0
    for key, described in plan.items():
        more = num_bytes(*described)
        if keys and size + more > shard_bytes:
            yield keys
            keys, size = [], 0
        keys.append(key)
        size += more
    yield keys
