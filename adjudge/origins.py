"""Where a setting's value comes from: flag > environment > file > default.

Each setting `max_batch_tokens` is the flag --max-batch-tokens, the variable
ADJUDGE_MAX_BATCH_TOKENS, and the entry max_batch_tokens in the [engine] or [service] table of a
TOML file (named by --config or ADJUDGE_CONFIG; no file is looked for). An unknown name in any of
them is an error.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from adjudge.config import SECTIONS, EngineConfig, Kind, ServiceConfig, check_value, kinds
from adjudge.errors import ConfigError

PREFIX = "ADJUDGE_"
_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_WORDS |= {"0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Value:
    """One setting's value and its origin: "flag --port", "environment ADJUDGE_PORT", …"""

    section: str
    name: str
    value: Any
    origin: str
    secret: bool

    @property
    def shown(self) -> Any:
        """The value as it may be printed."""
        return f"({len(self.value)} hidden)" if self.secret and self.value else self.value


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration, and each value's origin in field order."""

    engine: EngineConfig
    service: ServiceConfig
    values: tuple[Value, ...]


def add_flags(
    parser: argparse.ArgumentParser,
    sections: Iterable[str] = tuple(SECTIONS),
    *,
    only: Collection[str] | None = None,
    leave_out: Collection[str] = (),
) -> None:
    """One flag per setting. A flag that is not given leaves nothing in the parsed arguments.

    only: just these settings, where not None; leave_out: all but these.
    """
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file of settings", default=argparse.SUPPRESS
    )
    for section in sections:
        group = parser.add_argument_group(f"{section} settings")
        for item in fields(SECTIONS[section]):
            if item.name not in leave_out and (only is None or item.name in only):
                _add_flag(group, item.name, kinds(SECTIONS[section])[item.name], item)


def _add_flag(group: argparse._ArgumentGroup, name: str, kind: Kind, item: Any) -> None:
    options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
    unit = item.metadata["unit"]
    default = "none" if item.default in (None, ()) else str(item.default)
    if unit and default != "none":
        default += f" {unit}"
    if kind.word is bool:
        default = "on" if item.default else "off"
    options["help"] = f"{item.metadata['help']} (default: {default})"
    if kind.word is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["type"] = _argument_type(kind)
        options["metavar"] = "|".join(kind.choices) or (unit or name.rsplit("_", 1)[-1]).upper()
        options["action"] = "append" if kind.many else "store"
    group.add_argument(f"--{name.replace('_', '-')}", **options)


def _argument_type(kind: Kind) -> Any:
    def convert(text: str) -> Any:
        try:
            return _from_text(text, kind)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """The settings. flags: parsed arguments by name, other names in it are ignored.

    Raises ConfigError with the value's origin and what is accepted.
    """
    path = flags.get("config") or environ.get(f"{PREFIX}CONFIG")
    entries = _read_file(Path(path)) if path else {}
    _refuse_unknown_variables(environ)
    values: list[Value] = []
    for section, config in SECTIONS.items():
        for item in fields(config):
            value, origin = _choose(section, item.name, item.default, flags, environ, entries)
            try:
                check_value(config, item.name, value)
            except ConfigError as error:
                raise ConfigError(f"{origin}: {error.message}") from None
            values.append(Value(section, item.name, value, origin, item.metadata["secret"]))
    engine = EngineConfig(**{one.name: one.value for one in values if one.section == "engine"})
    service = ServiceConfig(**{one.name: one.value for one in values if one.section == "service"})
    return Settings(engine, service, tuple(values))


def _choose(
    section: str,
    name: str,
    default: Any,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    entries: Mapping[tuple[str, str], tuple[Any, str]],
) -> tuple[Any, str]:
    kind, variable = kinds(SECTIONS[section])[name], f"{PREFIX}{name.upper()}"
    if name in flags:
        given = flags[name]
        return (tuple(given) if kind.many else given), f"flag --{name.replace('_', '-')}"
    if variable in environ:
        try:
            return _from_variable(environ[variable], kind), f"environment {variable}"
        except ValueError as error:
            raise ConfigError(f"environment {variable}: {error}") from None
    if (section, name) in entries:
        given, origin = entries[section, name]
        return (tuple(given) if kind.many and isinstance(given, list) else given), origin
    return default, "default"


def _from_variable(text: str, kind: Kind) -> Any:
    if kind.many:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return _from_text(text, kind)


def _from_text(text: str, kind: Kind) -> Any:
    if kind.word is bool:
        if text.lower() not in _WORDS:
            raise ValueError(f"{text!r} is not one of {', '.join(_WORDS)}")
        return _WORDS[text.lower()]
    if kind.choices and text not in kind.choices:
        raise ValueError(f"{text!r} is not one of {', '.join(kind.choices)}")
    try:
        return kind.word(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number ({kind.word.__name__})") from None


def _read_file(path: Path) -> dict[tuple[str, str], tuple[Any, str]]:
    """(section, setting) -> (value, origin) of a TOML file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"file {path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"file {path}: not TOML ({error})") from None
    found = {}
    for section, table in tables.items():
        if section not in SECTIONS or not isinstance(table, dict):
            _refuse(f"file {path}", f"table [{section}]", section, SECTIONS)
        for name, value in table.items():
            if name not in kinds(SECTIONS[section]):
                _refuse(f"file {path}", f"{section}.{name}", name, kinds(SECTIONS[section]))
            found[section, name] = (value, f"file {path}, {section}.{name}")
    return found


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = [f"{PREFIX}{name.upper()}" for config in SECTIONS.values() for name in kinds(config)]
    known.append(f"{PREFIX}CONFIG")
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            _refuse("environment", variable, variable, known)


def _refuse(where: str, what: str, name: str, known: Iterable[str]) -> None:
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    remedy = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"
    raise ConfigError(f"{where}: {what} is no setting; {remedy}")
