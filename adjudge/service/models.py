"""GET /v1/models, readable by the TypeSafe SDK (`models`) and the OpenAI SDK (`data`)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from adjudge.families.limits import limit_facts

if TYPE_CHECKING:
    from adjudge.config import ServiceConfig
    from adjudge.engine_door import Door
    from adjudge.service.engines import Engines


def listing(engines: Engines, config: ServiceConfig, loaded: float | None = None) -> dict[str, Any]:
    """Every name that a request's `model` may have, and what is behind it.

    loaded: when it was loaded, seconds since 1970. A checkpoint does not say when it was
    released, so that day stands for the release date.
    """
    created = time.time() if loaded is None else loaded
    entries = [
        (name, door, _facts(door, config))
        for door in engines.doors.values()
        for name in engines.names(door)
    ]
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": int(created),
                "owned_by": door.card.name.partition("/")[0],
            }
            for name, door, _ in entries
        ],
        "models": [
            {
                "name": name,
                "description": _description(name, door),
                "release_date": datetime.fromtimestamp(created, UTC).date().isoformat(),
                **facts,
            }
            for name, door, facts in entries
        ],
    }


def _description(name: str, door: Door) -> str:
    card = door.card
    about = f"{card.family} checkpoint" + (", random weights" if card.random_weights else "")
    return about if name == card.name else f"{about}; stands for {card.name}"


def _facts(door: Door, config: ServiceConfig) -> dict[str, Any]:
    card, limits, health = door.card, door.family.limits, door.health()
    return {
        "revision": card.revision,
        "base": card.base,
        "base_revision": card.base_revision,
        "dtype": health.get("dtype"),
        "device": health.get("device"),
        "limits": {
            **limit_facts(limits, door.family.limits_for(card)),
            "max_questions": min(limits.max_questions, config.max_questions),
            "max_candidates": min(limits.max_candidates, config.max_candidates),
            "max_body_bytes": config.max_body_bytes or limits.max_body_bytes,
        },
    }
