"""OpenTelemetry spans (extra `otel`): one for each exchange, with its stages as children.

Spans are made when the exchange is over, from the timings taken anyway, so a request costs nothing
more while it runs. Exporter, resource and sampling follow the standard OTEL_ variables.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import adjudge
from adjudge.errors import ConfigError

if TYPE_CHECKING:
    from adjudge.service.exchange import Exchange

SECOND_NS = 1_000_000_000


class Tracing:
    """Turns exchanges into spans of a tracer provider."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._trace = import_module("opentelemetry.trace")
        self._carrier = import_module("opentelemetry.trace.propagation.tracecontext")
        self._tracer = provider.get_tracer("adjudge", adjudge.__version__)

    def record(self, exchange: Exchange, status: int, seconds: float) -> None:
        """A server span of the exchange, under the caller's span if it named one."""
        end = time.time_ns()
        start = end - int(seconds * SECOND_NS)
        parent = None
        if exchange.traceparent is not None:
            propagator = self._carrier.TraceContextTextMapPropagator()
            parent = propagator.extract({"traceparent": exchange.traceparent})
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}",
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            start_time=start,
            attributes={
                "http.request.method": exchange.method,
                "http.route": exchange.route,
                "http.response.status_code": status,
                "adjudge.request_id": exchange.request_id,
                **{f"adjudge.{name}": value for name, value in exchange.facts.items()},
            },
        )
        if status >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
        inside = self._trace.set_span_in_context(span)
        # The stages follow each other and end with the answer.
        at = end - int(sum(exchange.timings.values()) * SECOND_NS)
        for name, part in exchange.timings.items():
            stage = self._tracer.start_span(name, context=inside, start_time=at)
            at += int(part * SECOND_NS)
            stage.end(at)
        span.end(end)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def set_up(provider: Any = None) -> Tracing:
    """Tracing to the exporter that the OTEL_ variables name, or to the given provider.

    Raises ConfigError when the extra is not installed.
    """
    if provider is not None:
        return Tracing(provider)
    try:
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise ConfigError(
            f"tracing needs the package {error.name}; install adjudge[otel], or turn it off"
        ) from None
    made = sdk.TracerProvider()
    made.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return Tracing(made)
