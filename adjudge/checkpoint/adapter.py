"""LoRA deltas: pairs of small matrices in a file, checked against the weights they change.

W' = W + scale · B · A, in FP32, rounded once. The merge always runs on the CPU, in blocks of 64
rows that begin at multiples of 64, so that a merge at load, a merge at export and single rows
give the same bits, whatever the device and whichever rows are wanted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from adjudge.checkpoint.contents import Lora
from adjudge.checkpoint.safetensors_file import SafetensorsFile
from adjudge.checkpoint.tensor_names import IGNORED, canonical
from adjudge.config import AdapterMode
from adjudge.errors import CheckpointError
from adjudge.families import family_class

MERGE_BLOCK_ROWS = 64
PAIR_KEY = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")


def is_merged(mode: AdapterMode, family: str) -> bool:
    """Whether a family's adapter is merged under this mode."""
    own: str = family_class(family).about.adapter
    return mode == "merged" or (mode == "auto" and own != "unmerged")


class Adapter:
    """The deltas in one safetensors file, all of one rank and one scale.

    Keys are PEFT's: `base_model.model.` MODULE `.lora_A.weight`, the first part optional. Deltas
    of the parts that a text model ignores are left aside. shapes: canonical weight name -> shape.
    Raises CheckpointError for an unknown, single, doubled, misshapen or mistyped tensor.
    """

    def __init__(
        self,
        file: SafetensorsFile,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        rank: int,
        scale: float,
    ) -> None:
        self.file = file
        self.rank = rank
        self.scale = scale
        self._keys: dict[str, dict[str, str]] = {}
        self._seen: set[str] = set()  # keys whose values were found finite
        for key in file.entries:
            match = PAIR_KEY.fullmatch(key)
            if match is None:
                raise CheckpointError(f"{file.path}: {key}: not lora_A or lora_B of a module")
            name, side = f"{canonical(match[1])}.weight", match[2]
            if name.startswith(tuple(IGNORED)):
                continue
            sides = self._keys.setdefault(name, {})
            if side in sides:
                raise CheckpointError(f"{file.path}: {key}: lora_{side} of {name} is there twice")
            sides[side] = key
        for name in self._keys:
            self._check(name, shapes.get(name, ()))

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        path, sides = self.file.path, self._keys[name]
        if len(shape) != 2:
            raise CheckpointError(f"{path}: {self.key(name)}: the model has no matrix {name}")
        for side, expected in (("A", (self.rank, shape[1])), ("B", (shape[0], self.rank))):
            if side not in sides:
                raise CheckpointError(f"{path}: lora_{side} of {name} is missing")
            key = sides[side]
            entry = self.file.entries[key]
            if entry.dtype not in ("F32", "BF16"):
                raise CheckpointError(f"{path}: {key}: dtype {entry.dtype}; needs F32 or BF16")
            if entry.shape != expected:
                raise CheckpointError(
                    f"{path}: {key}: shape {list(entry.shape)}; expected {list(expected)} "
                    f"(rank {self.rank}, {name} {list(shape)})"
                )

    def names(self) -> set[str]:
        """Canonical names of the weights that have a delta."""
        return set(self._keys)

    @property
    def num_bytes(self) -> int:
        """Of all deltas, in FP32."""
        return sum(
            4 * math.prod(self.file.entries[key].shape)
            for sides in self._keys.values()
            for key in sides.values()
        )

    def key(self, name: str) -> str:
        """One of the file's keys for a weight, for messages."""
        return next(iter(self._keys[name].values()))

    def lora(self, name: str) -> Lora | None:
        """The delta of a weight, FP32 on the CPU, finite; None when it has none."""
        sides = self._keys.get(name)
        if sides is None:
            return None
        return Lora(self._read(sides["A"]), self._read(sides["B"]), self.scale)

    @contextmanager
    def view(self, name: str) -> Iterator[Lora | None]:
        """The delta as `lora` gives it, but B a view of the file in its stored dtype, for a few of
        its rows at a time. It must not outlive the block."""
        sides = self._keys.get(name)
        if sides is None:
            yield None
            return
        with self.file.view(sides["A"]) as a, self.file.view(sides["B"]) as b:
            for key, stored in ((sides["A"], a), (sides["B"], b)):
                if key not in self._seen:
                    check_finite(stored, self.file.path, key)
                    self._seen.add(key)
            yield Lora(a.float(), b, self.scale)

    def _read(self, key: str) -> Tensor:
        with self.file.view(key) as stored:
            made = stored.to(torch.float32, copy=True)
        check_finite(made, self.file.path, key)
        return made


def check_finite(tensor: Tensor, path: Path, key: str) -> None:
    """Raises CheckpointError when a value is NaN or infinite. One pass, no copy (aminmax)."""
    if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
        raise CheckpointError(f"{path}: {key}: holds a value that is not finite")


def merge(stored: Tensor, delta: Lora, dtype: torch.dtype) -> Tensor:
    """W + scale · B·A for a CPU matrix [N, K], computed in FP32, rounded once to `dtype`."""
    merged = torch.empty(stored.shape, dtype=dtype)
    for first in range(0, stored.shape[0], MERGE_BLOCK_ROWS):
        merged[first : first + MERGE_BLOCK_ROWS] = _merged_block(stored, delta, first)
    return merged


def merge_rows(stored: Tensor, delta: Lora, ids: Sequence[int]) -> Tensor:
    """The rows that `merge` to FP32 gives for `ids`, to the bit: float32 [len(ids), K]."""
    index = torch.tensor(ids, dtype=torch.int64)
    firsts = index - index % MERGE_BLOCK_ROWS
    made = torch.empty(len(ids), stored.shape[1])
    for first in firsts.unique().tolist():
        (places,) = torch.nonzero(firsts == first, as_tuple=True)
        made[places] = _merged_block(stored, delta, first)[index[places] - first]
    return made


def _merged_block(stored: Tensor, delta: Lora, first: int) -> Tensor:
    """FP32 rows of one block. Its product has this shape always: another may sum otherwise."""
    block = slice(first, first + MERGE_BLOCK_ROWS)
    return (delta.b[block].float() @ delta.a).mul_(delta.scale).add_(stored[block])
