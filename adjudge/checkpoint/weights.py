"""The weights of a model folder: names and shapes accounted for at opening, tensors streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from adjudge.checkpoint.adapter import Adapter, check_finite, merge, merge_rows
from adjudge.checkpoint.contents import AdapterUse, Lora
from adjudge.checkpoint.safetensors_file import DTYPES, SafetensorsFile
from adjudge.checkpoint.tensor_names import canonical, text_tensors, why_ignored
from adjudge.checkpoint.text_config import TextConfig
from adjudge.errors import CheckpointError

STORED_DTYPES = ("BF16", "F32")


class FolderWeights:
    """A WeightSource over safetensors files, with an adapter merged in or kept apart."""

    def __init__(
        self,
        files: Sequence[SafetensorsFile],
        config: TextConfig,
        *,
        adapter: Adapter | None = None,
        merged: bool = True,
        needs_lm_head: bool = False,
    ) -> None:
        """Matches the files' headers with the geometry, both ways.

        needs_lm_head: an untied checkpoint without `lm_head.weight` is refused; otherwise it may
        lack it, as a model that is read through a scoring head does. Raises CheckpointError.
        """
        self.adapter = adapter
        self.merged = merged
        self.shapes = text_tensors(config)
        self._found = _locate(files, config, self.shapes)
        if not needs_lm_head and "lm_head.weight" not in self._found:
            self.shapes.pop("lm_head.weight", None)
        for name in self.shapes:
            if name not in self._found:
                raise CheckpointError(f"{_described(files)}: {name} is missing")
        self._read: list[str] = []
        self._read_deltas: list[str] = []

    @property
    def precision(self) -> torch.dtype:
        file, key = self._found["embed_tokens.weight"]
        return DTYPES[file.entries[key].dtype]

    def names(self) -> set[str]:
        return set(self.shapes)

    @property
    def adapter_use(self) -> AdapterUse:
        if self.adapter is None:
            return "none"
        return "merged" if self.merged else "unmerged"

    @property
    def delta_bytes(self) -> int:
        return self.adapter.num_bytes if self.adapter and not self.merged else 0

    def deltas(self) -> set[str]:
        return set() if self.adapter is None or self.merged else self.adapter.names()

    def exact_dtype(self, name: str) -> torch.dtype:
        file, key = self._located(name)
        if self.merged and self.adapter is not None and name in self.adapter.names():
            return torch.float32
        return DTYPES[file.entries[key].dtype]

    def read(
        self, name: str, *, device: torch.device | str, dtype: torch.dtype, exact: bool = False
    ) -> Tensor:
        file, key = self._located(name)
        precision = torch.float32 if exact else self.precision
        self._read.append(name)
        delta = self.adapter.lora(name) if self.adapter and self.merged else None
        with file.view(key) as stored:
            if delta is not None:
                made = merge(stored, delta, precision)
                self._read_deltas.append(name)
            elif exact or precision == stored.dtype:
                made = stored.to(device, dtype, copy=True)
            else:
                made = stored.to(precision)
            made = made.to(device, dtype)
        self._check(made, name, delta is not None)
        return made

    def rows(self, name: str, ids: Sequence[int], *, device: torch.device | str) -> Tensor:
        file, key = self._located(name)
        with file.view(key) as stored, self._delta(name) as delta:
            if delta is None:
                index = torch.tensor(ids, dtype=torch.int64)
                made = stored.index_select(0, index).to(torch.float32)
            else:
                made = merge_rows(stored, delta, ids)
        self._check(made, name, delta is not None)
        return made.to(device)

    def lora(self, name: str) -> Lora | None:
        if self.adapter is None or self.merged:
            return None
        delta = self.adapter.lora(name)
        if delta is not None:
            self._read_deltas.append(name)
        return delta

    def finish(self, consumed: set[str], ignored: Mapping[str, str]) -> None:
        """See WeightSource. Deltas count like tensors: one that nobody applied is an error."""
        account(self.names(), self._read, consumed, ignored, where=self._where)
        if self.adapter is not None:
            file = self.adapter.file.path
            account(
                self.adapter.names(),
                self._read_deltas,
                set(),
                ignored,
                where=lambda name: f"{file}: the LoRA of {name}",
            )

    def _delta(self, name: str) -> AbstractContextManager[Lora | None]:
        return nullcontext() if self.adapter is None else self.adapter.view(name)

    def _check(self, made: Tensor, name: str, has_delta: bool) -> None:
        """That a weight is finite. Where it has its delta in it, the file at fault is named."""
        file, key = self._located(name)
        try:
            check_finite(made, file.path, key)
        except CheckpointError:
            if self.adapter is None or not has_delta:
                raise
            with file.view(key) as stored:
                check_finite(stored.to(made.dtype), file.path, key)
            raise CheckpointError(
                f"{self.adapter.file.path}: {self.adapter.key(name)}: the LoRA makes {key} of "
                f"{file.path} a value that is not finite"
            ) from None

    def _located(self, name: str) -> tuple[SafetensorsFile, str]:
        if name not in self.shapes:
            raise CheckpointError(f"{_described([f for f, _ in self._found.values()])}: no {name}")
        return self._found[name]

    def _where(self, name: str) -> str:
        if name not in self._found:
            return name
        file, key = self._found[name]
        return f"{file.path}: {key}"


def account(
    names: set[str],
    read: Sequence[str],
    consumed: set[str],
    ignored: Mapping[str, str],
    *,
    where: Callable[[str], str],
) -> None:
    """Each name was read exactly once, or is under an ignored prefix. Raises CheckpointError."""
    counts = Counter(read)
    for name in sorted(names | counts.keys() | consumed):
        count = counts[name]
        if count > 1:
            raise CheckpointError(f"{where(name)}: read {count} times")
        if name in consumed and count == 0:
            raise CheckpointError(f"{where(name)}: said to be used, but never read")
        skipped = any(name.startswith(prefix) for prefix in ignored)
        if count == 0 and not skipped:
            raise CheckpointError(f"{where(name)}: not read, and no reason given to ignore it")


def _locate(
    files: Sequence[SafetensorsFile], config: TextConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[SafetensorsFile, str]]:
    """Canonical name -> file and key. Refuses what is unknown, doubled, misshapen or mistyped."""
    found: dict[str, tuple[SafetensorsFile, str]] = {}
    for file in files:
        for key, entry in file.entries.items():
            name = canonical(key)
            if why_ignored(name, config) is not None:
                continue
            shape = shapes.get(name)
            if shape is None:
                raise CheckpointError(f"{file.path}: {key}: not a tensor of this geometry")
            if entry.shape != shape:
                raise CheckpointError(
                    f"{file.path}: {key}: shape {list(entry.shape)}; expected {list(shape)}"
                )
            if entry.dtype not in STORED_DTYPES:
                accepted = " or ".join(STORED_DTYPES)
                raise CheckpointError(f"{file.path}: {key}: dtype {entry.dtype}; needs {accepted}")
            if name in found:
                raise CheckpointError(
                    f"{file.path}: {key}: {name} is also {found[name][1]} in {found[name][0].path}"
                )
            found[name] = (file, key)
    return found


def _described(files: Sequence[SafetensorsFile]) -> Path:
    """The one file, or the folder of the shards."""
    return files[0].path if len({file.path for file in files}) == 1 else files[0].path.parent
