"""One safetensors file, memory-mapped: headers checked at opening, tensors copied out one by one.

Own reader, because the pages of a tensor are given back once it is copied: a load then keeps one
copy of the weights resident, not two. The format is the public one of the safetensors library:
u64 header length, JSON header {name: {dtype, shape, data_offsets}}, data without holes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adjudge.checkpoint.json_file import parse_object, read_object
from adjudge.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor's header: dtype as the file spells it, shape, first byte and length in the file."""

    dtype: str
    shape: tuple[int, ...]
    first_byte: int
    num_bytes: int


class SafetensorsFile:
    """The tensors of one file. `entries` maps key -> Entry."""

    def __init__(self, path: Path) -> None:
        """Maps the file and checks its header. Raises CheckpointError naming file and key."""
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        self.entries = self._header()

    def _header(self) -> dict[str, Entry]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little")
        data = 8 + length
        if size < 8 or length > MAX_HEADER_BYTES or data > size:
            raise CheckpointError(f"{self.path}: not a safetensors file, or cut short")
        header = parse_object(self._map[8:data], f"{self.path} (header)")
        header.pop("__metadata__", None)
        entries = {key: self._entry(key, value, data) for key, value in header.items()}
        end = data
        for key, entry in sorted(entries.items(), key=lambda item: item[1].first_byte):
            if entry.first_byte != end:
                raise CheckpointError(f"{self.path}: {key}: data overlaps or leaves a hole")
            end += entry.num_bytes
        if end != size:
            raise CheckpointError(
                f"{self.path}: the header describes {end} bytes, the file has {size}; "
                "it is cut short or was not written whole"
            )
        return entries

    def _entry(self, key: str, value: Any, data: int) -> Entry:
        try:
            dtype = DTYPES[value["dtype"]]
            shape = tuple(value["shape"])
            begin, end = value["data_offsets"]
            sizes = (*shape, begin, end)
            fits = all(type(n) is int and n >= 0 for n in sizes)
            fits = fits and prod(shape) * dtype.itemsize == end - begin
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.path}: {key}: malformed header: {value!r}") from error
        if not fits:
            raise CheckpointError(f"{self.path}: {key}: shape and size disagree: {value!r}")
        return Entry(value["dtype"], shape, data + begin, end - begin)

    @contextmanager
    def view(self, key: str) -> Iterator[Tensor]:
        """The tensor as a view of the mapped file (CPU, its stored dtype); read-only by contract.

        The view must not outlive the block: its pages are given back at the end.
        """
        entry = self.entries[key]
        dtype = DTYPES[entry.dtype]
        if entry.num_bytes == 0:
            yield torch.empty(entry.shape, dtype=dtype)
            return
        count = prod(entry.shape)
        if entry.first_byte % dtype.itemsize:
            chunk = bytearray(self._map[entry.first_byte : entry.first_byte + entry.num_bytes])
            yield torch.frombuffer(chunk, dtype=dtype, count=count).view(entry.shape)
            return
        yield torch.frombuffer(self._map, dtype=dtype, count=count, offset=entry.first_byte).view(
            entry.shape
        )
        first = entry.first_byte - entry.first_byte % mmap.PAGESIZE
        last = entry.first_byte + entry.num_bytes
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def open_shards(folder: Path) -> list[SafetensorsFile]:
    """The files of a Transformers folder: `model.safetensors`, or an index and its shards.

    The index and the shards must name the same tensors. Raises CheckpointError.
    """
    single = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if single.exists() and index.exists():
        raise CheckpointError(
            f"{folder}: holds both {single.name} and {index.name}; remove the one that is stale"
        )
    if single.exists():
        return [SafetensorsFile(single)]
    if not index.exists():
        raise CheckpointError(
            f"{folder}: no {single.name} and no {index.name}; only safetensors weights are read"
        )
    return _indexed(folder, index)


def _indexed(folder: Path, index: Path) -> list[SafetensorsFile]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing or empty")
    for key, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index}: {key}: {name!r} is not a file name in this folder")
    shards = [SafetensorsFile(folder / name) for name in sorted(set(weight_map.values()))]
    for shard in shards:
        listed = {key for key, name in weight_map.items() if name == shard.path.name}
        for key in sorted(listed ^ set(shard.entries)):
            side = "the index but not in the shard" if key in listed else "the shard only"
            raise CheckpointError(f"{shard.path}: {key}: in {side}; the index is {index.name}")
    return shards
