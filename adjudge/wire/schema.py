"""JSON schemas of the wire's types, for /openapi.json."""

from __future__ import annotations

from typing import Any

import msgspec

from adjudge.wire.answer import Response
from adjudge.wire.request import Request


def json_schemas(*, ref_template: str = "#/components/schemas/{name}") -> dict[str, Any]:
    """Name -> JSON schema of every type of a request and a response; `Request` and `Response`
    are the roots. Extra `x_` keys of answers are allowed, not listed."""
    _, components = msgspec.json.schema_components([Request, Response], ref_template=ref_template)
    for name in ("NoulAnswer", "ChoiceAnswer", "ScoreAnswer"):
        del components[name]["properties"]["extra"]
    metadata = components["Response"]["properties"].pop("metadata")
    components["Response"]["properties"]["x_metadata"] = metadata
    components["Request"]["properties"]["questions"]["minProperties"] = 1
    return components
