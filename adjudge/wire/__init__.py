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
from adjudge.wire.decide import decide_detail, decide_to, parse_decide
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
    kind_of,
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
    "decide_detail",
    "decide_to",
    "decode_json",
    "encode_response",
    "error_body",
    "json_schemas",
    "kind_of",
    "parse_decide",
    "parse_request",
    "request_from",
    "response_to",
    "typed_request",
]
