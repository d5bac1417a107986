"""The contract as an OpenAPI 3.1 document, made from the types that decode and encode it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

import adjudge
from adjudge.service.decisions import DecisionRequest
from adjudge.wire import json_schemas
from adjudge.wire.decide import KINDS, PROTOCOL

if TYPE_CHECKING:
    from adjudge.config import ServiceConfig
    from adjudge.service.engines import Engines

TEMPLATE = "#/components/schemas/{name}"

STATUSES = {
    "400": "The body cannot be read, the model is unknown, or a token limit is exceeded.",
    "401": "The key is missing or not accepted.",
    "403": "A web page of another site asked, and its origin is not allowed.",
    "404": "There is no such path.",
    "405": "The path takes another method.",
    "408": "The body did not arrive in time, or the request's deadline passed.",
    "413": "The body is too large once decoded.",
    "415": "The media type or content encoding is not served.",
    "429": "This caller asks more often than it may; see Retry-After and retry-after-ms.",
    "500": "A fault of the server.",
    "503": "Loading, stopping, or the engine stopped.",
    "529": "Too much is waiting; see Retry-After and retry-after-ms.",
}

POSTS = ("400", "401", "403", "405", "408", "413", "415", "429", "500", "503", "529")
GETS = ("401", "405", "500")


def describe(config: ServiceConfig, engines: Engines) -> dict[str, Any]:
    """The document. The response's metadata key and the limits are those in force."""
    limits = engines.limits()
    schemas = json_schemas(ref_template=TEMPLATE) | _own_schemas()
    schemas["Request"]["properties"]["questions"] |= {
        "propertyNames": {"minLength": 1},
        "maxProperties": min(limits.max_questions, config.max_questions),
    }
    schemas["Choice"]["properties"]["criteria"] |= {
        "minProperties": limits.min_options,
        "maxProperties": limits.max_options,
    }
    schemas["Score"]["properties"]["criteria"] |= {
        "minItems": limits.min_levels,
        "maxItems": limits.max_levels,
    }
    metadata = schemas["Response"]["properties"].pop("x_metadata")
    schemas["Response"]["properties"][config.metadata_key] = metadata
    answer = {"200": _json("The answers, in the order of the questions.", "Response")}
    listed = {"200": _json("The answers as a list.", "DecisionResponse")}
    counted = {"200": _json("What the request would cost.", "TokenCounts")}
    shown = {"200": _json("Ready.", "Health"), "503": _json("Not ready.", "Health")}
    paths = {
        "/v1/systemone": _post("Answer questions about a state", "Request", answer),
        "/v1/systemone/tokens": _post("Count a request's tokens; runs nothing", "Request", counted),
        "/v1/decisions": _post("The same in OpenAI's spelling", "DecisionRequest", listed),
        "/api/alpha/decisions": _post("The same at OpenRouter's path", "Request", answer),
        "/v1/models": _get("The loaded model", {"200": _json("The models.", "Models")}),
        "/health": _get("Ready or why not; deep=1 runs one request", shown, deep=True, open=True),
        "/health/ready": _get("Ready or why not", shown, deep=True, open=True),
        "/health/live": _get("Whether only a restart can help", shown, open=True),
        "/metrics": _get("Prometheus metrics", {"200": _text("text/plain")}),
        "/version": _get("The version", {"200": _json("The version.", "Version")}, open=True),
        "/openapi.json": _get("This document", {"200": _json("OpenAPI 3.1.", "Any")}),
        "/docs": _get("A page that asks this server", {"200": _text("text/html")}),
    }
    if engines.asked_at_decide:
        paths["/v1/decide"] = _post(
            "One decision in JEV-VL's own spelling",
            "DecideRequest",
            {"200": _json("The decision.", "DecideResponse")},
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "adjudge",
            "version": adjudge.__version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Send a state and questions, get calibrated probabilities. Bodies may "
            f"take {config.max_body_bytes or engines.limits().max_body_bytes} bytes once decoded.",
        },
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _post(summary: str, body: str, answers: dict[str, Any]) -> dict[str, Any]:
    schema = {"$ref": TEMPLATE.format(name=body)}
    return {
        "post": {
            "summary": summary,
            "parameters": [
                _header(
                    "x-request-id", "Identifier to find the request in logs", {"type": "string"}
                ),
                _header("traceparent", "W3C trace context, passed on", {"type": "string"}),
                _header(
                    "x-deadline-ms",
                    "Milliseconds after which no answer is wanted",
                    {"type": "integer", "minimum": 1, "maximum": 999_999_999},
                ),
            ],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": schema},
                    "multipart/form-data": {
                        "schema": {
                            "type": "object",
                            "properties": {"request": schema},
                            "required": ["request"],
                        },
                        "encoding": {"request": {"contentType": "application/json"}},
                    },
                },
            },
            "responses": answers | {"422": _invalid()} | _errors(POSTS),
        }
    }


def _get(
    summary: str,
    answers: dict[str, Any],
    *,
    deep: bool = False,
    open: bool = False,  # noqa: A002
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": _errors(GETS) | answers}
    if open:
        operation["security"] = [{}]
    if deep:
        operation["parameters"] = [
            {
                "name": "deep",
                "in": "query",
                "description": "1: also run one request; anything else is ignored",
                "schema": {"type": "string"},
            }
        ]
    return {"get": operation}


def _header(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": text, "schema": schema}


def _json(text: str, schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": TEMPLATE.format(name=schema)}}}
    return {"description": text, "content": content}


def _text(media: str) -> dict[str, Any]:
    return {"description": "Text.", "content": {media: {"schema": {"type": "string"}}}}


def _invalid() -> dict[str, Any]:
    return _json("One or more fields are wrong.", "Invalid")


def _errors(statuses: tuple[str, ...]) -> dict[str, Any]:
    return {status: _json(STATUSES[status], "Error") for status in statuses}


def _own_schemas() -> dict[str, Any]:
    """Schemas of what only the service speaks."""
    _, schemas = msgspec.json.schema_components([DecisionRequest], ref_template=TEMPLATE)
    text, whole, number = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "number"}
    loose = {"type": "object", "additionalProperties": True}
    schemas["DecisionRequest"]["properties"]["questions"]["minItems"] = 1
    schemas |= {
        "Any": loose,
        "Error": _object(detail=_object(error_type=text, message=text)),
        "Invalid": _object(
            detail={
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["loc", "msg", "type"],
                    "properties": {
                        "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                        "msg": text,
                        "type": text,
                        "input": {},
                    },
                },
            }
        ),
        "TokenCounts": _object(
            model=text,
            questions={"type": "object", "additionalProperties": loose},
            input_tokens=whole,
            unique_tokens=whole,
            max_prompt_tokens=whole,
        ),
        "DecisionResponse": _object(
            model=text,
            answers={
                "type": "array",
                "items": _object(type=text, name={"type": ["string", "null"]}),
            },
            usage=_object(input_tokens=whole, output_tokens=whole, total_tokens=whole),
        ),
        "DecideRequest": {
            "type": "object",
            "required": ["kind", "question"],
            "properties": {
                "kind": {"enum": list(KINDS)},
                "question": text,
                "state": {"type": ["string", "object", "array"]},
                "options": {"type": "array", "items": text, "uniqueItems": True},
                "model": {"type": ["string", "null"]},
            },
            "if": {"properties": {"kind": {"const": "choice"}}},
            "then": {"required": ["options"]},
        },
        "DecideResponse": _object(
            kind={"enum": list(KINDS)},
            options={"type": "array", "items": text},
            probabilities={"type": "array", "items": number},
            choice_index=whole,
            choice=text,
            protocol={"const": PROTOCOL},
            model=text,
            usage=_object(prompt_tokens=whole, completion_tokens=whole, total_tokens=whole),
            elapsed_seconds=number,
        ),
        "Models": _object(
            object={"const": "list"},
            data={"type": "array", "items": _object(id=text, object={"const": "model"})},
            models={
                "type": "array",
                "items": _object(name=text, description=text, release_date=text),
            },
        ),
        "Health": loose
        | {"required": ["status"], "properties": {"status": text, "deep_ms": number}},
        "Version": _object(name=text, version=text),
    }
    return schemas


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}
