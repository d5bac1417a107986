"""Spans of an exchange: the caller's trace, the stages, nothing of the request's text."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from adjudge.errors import ConfigError
from adjudge.service.exchange import Exchange
from adjudge.service.tracing import set_up

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


def test_an_exchange_becomes_a_span_with_its_stages_under_the_callers() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = set_up(provider)
    headers = [(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode()), (b"x-request-id", b"mine")]
    scope = {"method": "POST", "path": "/v1/systemone", "headers": headers}

    async def receive() -> dict[str, object]:
        raise AssertionError

    exchange = Exchange.begin(scope, receive)
    exchange.route = exchange.path
    exchange.timings = {"tokenise": 0.001, "queue": 0.002, "run": 0.003}
    exchange.facts = {"prompts": 3}
    tracing.record(exchange, 200, 0.01)
    tracing.close()
    *stages, whole = exporter.get_finished_spans()
    assert whole.name == "POST /v1/systemone" and whole.kind == SpanKind.SERVER
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert whole.parent is not None and f"{whole.parent.span_id:016x}" == SPAN
    assert whole.attributes is not None
    assert whole.attributes["adjudge.request_id"] == "mine"
    assert whole.attributes["adjudge.prompts"] == 3
    assert [stage.name for stage in stages] == ["tokenise", "queue", "run"]
    for stage in stages:
        assert stage.parent == whole.context
        assert whole.start_time <= stage.start_time <= stage.end_time <= whole.end_time
    assert whole.end_time - whole.start_time == pytest.approx(10_000_000, abs=1000)


def test_without_the_extra_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"adjudge\[otel\]"):
        set_up()
