"""The loaded engines, and which of them a request's `model` means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from adjudge.errors import UsageError
from adjudge.families import family_class
from adjudge.families.limits import ALWAYS_ACCEPTED
from adjudge.wire import Request, typed_request

if TYPE_CHECKING:
    from adjudge.engine_door import Door
    from adjudge.families import Limits
    from adjudge.families.about import About


class Engines:
    """Engines by the name that the operator gave them; the first is the one meant by default.

    A name is an operator's, or one that a family takes for its checkpoint; an operator's wins,
    then the earlier engine.
    With one engine, a name that is none of these is for its family to accept or refuse.
    """

    def __init__(self, doors: Mapping[str, Door]) -> None:
        self.doors = dict(doors)
        self.first = next(iter(self.doors.values()))
        self._known: dict[str, Door] = dict(self.doors)
        for door in self.doors.values():
            for name in door.family.names:
                self._known.setdefault(name, door)
        for name in ALWAYS_ACCEPTED:
            self._known[name] = self.first

    def read(self, value: Any) -> tuple[Door, Request]:
        """The engine and the request of a decoded body. Raises UsageError, InvalidRequest."""
        model = value.get("model") if isinstance(value, dict) else None
        door = self._pick(model if isinstance(model, str) else None)
        return door, self._settled(typed_request(value, aliases=door.family.limits.aliases))

    def claim_decide(self, request: Request) -> tuple[Door, Request]:
        """The engine of a request to /v1/decide, and the request without the name that is settled
        by that. The first engine that is asked there is the one meant by default. Raises
        UsageError."""
        asked_there = [door for door in self.doors.values() if _is_asked_at_decide(door)]
        default = request.model is None or request.model in ALWAYS_ACCEPTED
        door = asked_there[0] if default and asked_there else self._pick(request.model)
        if door not in asked_there:
            names = [name for one in asked_there for name in self.names(one)]
            there = f"send one of: {', '.join(names)}" if names else "none is loaded here"
            raise UsageError(
                "the model of this request is not asked at /v1/decide, which is the body of "
                f"JEV-VL; ask it at /v1/systemone, or leave model out or {there}"
            )
        return door, self._settled(request)

    def _pick(self, model: str | None) -> Door:
        door = self.first if model is None else self._known.get(model)
        if door is None and len(self.doors) > 1:
            raise UsageError(
                "the model of this request is not loaded here; leave model out or send one of: "
                f"{', '.join(self._known)}"
            )
        return door or self.first

    def _settled(self, request: Request) -> Request:
        if request.model in self._known:
            return msgspec.structs.replace(request, model=None)
        return request

    def names(self, door: Door) -> list[str]:
        """Every name known here that means this engine: its own first, then the others."""
        given = [name for name, one in self._known.items() if one is door]
        return list(dict.fromkeys((*(n for n in self.doors if n in given), *given)))

    def served_as(self, door: Door) -> str | None:
        """The operator's name of an engine; None where it is alone under the checkpoint's own."""
        name = next(name for name, one in self.doors.items() if one is door)
        return None if len(self.doors) == 1 and name == door.card.name else name

    @property
    def asked_at_decide(self) -> bool:
        """Whether an engine's family is asked at /v1/decide."""
        return any(map(_is_asked_at_decide, self.doors.values()))

    def limits(self) -> Limits:
        """The widest limits of any engine, for a document that describes them all."""
        widest = self.first.family.limits
        for door in self.doors.values():
            other = door.family.limits
            widest = replace(
                widest,
                max_questions=max(widest.max_questions, other.max_questions),
                min_options=min(widest.min_options, other.min_options),
                max_options=max(widest.max_options, other.max_options),
                min_levels=min(widest.min_levels, other.min_levels),
                max_levels=max(widest.max_levels, other.max_levels),
                max_body_bytes=max(widest.max_body_bytes, other.max_body_bytes),
            )
        return widest


def _is_asked_at_decide(door: Door) -> bool:
    about: About = family_class(door.card.family).about
    return about.decide
