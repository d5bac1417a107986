"""What /metrics shows. Counts and seconds only: no request text, no names from requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

if TYPE_CHECKING:
    from adjudge.errors import AdjudgeError
    from adjudge.scheduler import PassReport, Ran
    from adjudge.wire import Request

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)


class Metrics:
    """One set of metrics for one server; not the library's global registry."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"adjudge_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"adjudge_{name}", text, buckets=buckets, registry=registry)

        ProcessCollector(registry=registry)
        self._requests = counter("requests", "Requests answered", "route", "status")
        self._rejections = counter("rejections", "Requests refused or failed", "reason")
        self._questions = counter("questions", "Questions asked", "type")
        self._candidates = counter("candidates", "Candidates over all questions")
        self._prompt_tokens = counter(
            "prompt_tokens", "Tokens of all prompts, shared ones each time"
        )
        self._unique_tokens = counter("unique_tokens", "Different tokens of each request")
        self._passes = counter("passes", "Forward passes")
        self._planned = counter("passes_planned_ahead", "Passes planned while another ran")
        self._rows = counter("batch_rows", "Rows computed without padding")
        self._padding = counter("padding_rows", "Rows computed as padding")
        self._reused = counter("prefix_hit_tokens", "Rows taken from states of earlier passes")
        self._request_seconds = histogram("request_seconds", "Whole request, as served", SECONDS)
        self._queue_seconds = histogram("queue_seconds", "Submitted until dispatched", SECONDS)
        self._run_seconds = histogram("run_seconds", "One forward pass", SECONDS)
        self._batch_rows = histogram("batch_size_rows", "Rows of one pass", ROWS)
        self._healthy = Gauge("adjudge_healthy", "1 while ready to answer", registry=registry)
        self._pending = Gauge("adjudge_pending_requests", "Accepted, unanswered", registry=registry)
        self._waiting = Gauge("adjudge_pending_tokens", "Their unique tokens", registry=registry)
        self._known: dict[tuple[str, int], Counter] = {}

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a finished exchange. route: a route's own path, never the caller's spelling."""
        counter = self._known.get((route, status))
        if counter is None:
            counter = self._known[route, status] = self._requests.labels(route, status)
        counter.inc()
        self._request_seconds.observe(seconds)

    def rejection(self, error: AdjudgeError) -> None:
        self._rejections.labels(type(error).__name__).inc()

    def answered(self, request: Request, ran: Ran, prompt_tokens: int, rows: int) -> None:
        """Count what an answered request asked."""
        for question in request.questions.values():
            self._questions.labels(type(question).__name__.lower()).inc()
        self._candidates.inc(len(ran.logits))
        self._prompt_tokens.inc(prompt_tokens)
        self._unique_tokens.inc(rows)
        self._queue_seconds.observe(ran.queue_seconds)

    def ran(self, report: PassReport) -> None:
        """Count a pass. Called from the worker thread."""
        self._passes.inc()
        self._planned.inc(report.planned_ahead)
        self._rows.inc(report.rows)
        self._padding.inc(report.padded_rows - report.rows)
        self._reused.inc(report.reused_rows)
        self._run_seconds.observe(report.seconds)
        self._batch_rows.observe(report.rows)

    def text(self, *, healthy: bool, pending: tuple[int, int]) -> bytes:
        """The exposition."""
        self._healthy.set(healthy)
        self._pending.set(pending[0])
        self._waiting.set(pending[1])
        return generate_latest(self._registry)
