"""The wire: request and answer types, strict JSON in, JSON out, errors as bodies.

bytes --parse_request--> Request … Response --encode_response--> bytes
"""

from adjudge.wire.answer import (
    Answer,
    ChoiceAnswer,
    NoulAnswer,
    Response,
    ScoreAnswer,
    Usage,
    encode_response,
    response_to,
)
from adjudge.wire.faults import error_body
from adjudge.wire.request import (
    Asset,
    Choice,
    Noul,
    NoulCriteria,
    Question,
    Request,
    Score,
    Text,
)
from adjudge.wire.schema import json_schemas
from adjudge.wire.strict_json import decode_json
from adjudge.wire.validate import parse_request, request_from, typed_request

__all__ = [
    "Answer",
    "Asset",
    "Choice",
    "ChoiceAnswer",
    "Noul",
    "NoulAnswer",
    "NoulCriteria",
    "Question",
    "Request",
    "Response",
    "Score",
    "ScoreAnswer",
    "Text",
    "Usage",
    "decode_json",
    "encode_response",
    "error_body",
    "json_schemas",
    "parse_request",
    "request_from",
    "response_to",
    "typed_request",
]
