"""GET /v1/models, readable by the TypeSafe SDK (`models`) and the OpenAI SDK (`data`)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.config import ServiceConfig
    from adjudge.engine_door import Door

LATEST = "jev-latest"


def listing(door: Door, config: ServiceConfig, loaded: float | None = None) -> dict[str, Any]:
    """The loaded model under its own name, then under its aliases.

    loaded: when it was loaded, seconds since 1970. A checkpoint does not say when it was
    released, so that day stands for the release date.
    """
    created = time.time() if loaded is None else loaded
    card, limits = door.card, door.family.limits
    about = f"{card.family} checkpoint" + (", random weights" if card.random_weights else "")
    extra = {
        "revision": card.revision,
        "base": card.base,
        "base_revision": card.base_revision,
        **{name: door.health().get(name) for name in ("dtype", "device")},
        "limits": {
            "max_prompt_tokens": limits.max_prompt_tokens,
            "max_questions": min(limits.max_questions, config.max_questions),
            "max_candidates": min(limits.max_candidates, config.max_candidates),
            "max_request_tokens": limits.max_request_tokens,
            "max_body_bytes": config.max_body_bytes,
        },
    }
    names = dict.fromkeys((card.name, LATEST, *card.aliases))
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": int(created),
                "owned_by": card.name.partition("/")[0],
            }
            for name in names
        ],
        "models": [
            {
                "name": name,
                "description": about if name == card.name else f"{about}; stands for {card.name}",
                "release_date": datetime.fromtimestamp(created, UTC).date().isoformat(),
                **extra,
            }
            for name in names
        ],
    }
