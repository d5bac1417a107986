"""JSON files of a checkpoint, read strictly: every refusal names the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from adjudge.errors import CheckpointError

MAX_JSON_BYTES = 64 << 20


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object without duplicate keys or NaN. Raises CheckpointError that begins `where`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"key {twice!r} appears twice")
        return made

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON number")

    try:
        found = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{where}: holds a JSON {type(found).__name__}, not an object")
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of at most 64 MiB. Raises CheckpointError naming the file."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: {size_bytes} bytes; the limit is {MAX_JSON_BYTES}")
        return parse_object(path.read_bytes(), str(path))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed access to the fields of one JSON object; `where` names the file in messages."""

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, path: Path) -> Fields:
        return cls(read_object(path), str(path))

    def refuse(self, key: str, accepted: str) -> NoReturn:
        if key not in self.values:
            raise CheckpointError(f"{self.where}: {key} is missing; expected {accepted}")
        shown = repr(self.values[key])
        shown = shown if len(shown) <= 120 else shown[:120] + "…"
        raise CheckpointError(f"{self.where}: {key} is {shown}; expected {accepted}")

    def only(self, key: str, *accepted: Any) -> None:
        """Refuses any value of the field, or its absence, but those given."""
        if not any(self.values.get(key) == value for value in accepted):
            self.refuse(key, " or ".join(map(repr, accepted)))

    def string(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not value:
            self.refuse(key, "a non-empty string")
        return value

    def optional_string(self, key: str) -> str | None:
        return None if self.values.get(key) is None else self.string(key)

    def strings(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            self.refuse(key, "a list of strings")
        return tuple(value)

    def boolean(self, key: str) -> bool:
        value = self.values.get(key)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def inner(self, key: str) -> Fields:
        """The object in a field, named `key` after this one's place."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            self.refuse(key, "an object")
        return Fields(value, f"{self.where}: {key}")

    def integer(self, key: str, least: int, most: int) -> int:
        value = self.values.get(key)
        if type(value) is not int or not least <= value <= most:
            self.refuse(key, f"an integer from {least} to {most}")
        return value

    def integers(self, key: str, count: int) -> list[int]:
        """A list of exactly `count` integers of at least 0."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
            self.refuse(key, f"a list of {count} integers")
        if len(value) != count:
            raise CheckpointError(f"{self.where}: {key} has {len(value)} numbers; expected {count}")
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        value = finite(self.values.get(key))
        if value is None:
            self.refuse(key, "a finite number")
        return value

    def positive(self, key: str) -> float:
        value = finite(self.values.get(key))
        if value is None or value <= 0:
            self.refuse(key, "a finite number above 0")
        return value

    def numbers(self, key: str, count: int) -> list[float]:
        """A list of exactly `count` finite numbers."""
        value = self.values.get(key)
        if not isinstance(value, list):
            self.refuse(key, f"a list of {count} numbers")
        if len(value) != count:
            raise CheckpointError(f"{self.where}: {key} has {len(value)} numbers; expected {count}")
        made: list[float] = []
        for index, number in enumerate(value):
            real = finite(number)
            if real is None:
                raise CheckpointError(f"{self.where}: {key}[{index}] is not a finite number")
            made.append(real)
        return made


def finite(value: object) -> float | None:
    """A JSON number as a float; None when it is no number, or too large for one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
