"""The service as one ASGI application: routes, errors as bodies, headers, the log, the counts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse
from starlette.responses import Response as HttpResponse
from starlette.types import ASGIApp, Receive, Scope, Send

import adjudge
from adjudge.errors import (
    AdjudgeError,
    InternalError,
    MethodNotAllowed,
    NotFound,
    RequestTimeout,
)
from adjudge.scheduler import Cancelled
from adjudge.scheduler.worker import where
from adjudge.service import metrics as metrics_room
from adjudge.service.decide import Decider
from adjudge.service.decisions import decisions
from adjudge.service.exchange import Exchange
from adjudge.service.health import Health, deep
from adjudge.service.journal import exchange_line
from adjudge.service.keys import Keys, check_origin
from adjudge.service.media import BodyReader
from adjudge.service.metrics import Metrics
from adjudge.service.models import listing
from adjudge.service.openapi import describe
from adjudge.service.playground import page
from adjudge.service.rates import Rates
from adjudge.service.warmup import ask_app
from adjudge.wire import error_body

if TYPE_CHECKING:
    from adjudge.config import ServiceConfig
    from adjudge.scheduler import Scheduler
    from adjudge.service.engines import Engines
    from adjudge.service.tracing import Tracing

log = logging.getLogger("adjudge.service")

DECIDE_PATH = "/v1/decide"
"""Of a body of its own, there with a model of a family that is asked so."""

CLIENT_LEFT = 499
"""Status in log and metrics of an exchange whose client left; nothing was sent."""

Handler = Callable[[Exchange], Awaitable[HttpResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """open: answered without a key."""

    method: str
    handler: Handler
    open: bool = False


class Service:
    """Routes of the loaded engines. Use `application` for the ASGI app with its middleware."""

    def __init__(
        self,
        engines: Engines,
        scheduler: Scheduler,
        config: ServiceConfig,
        *,
        keys: Keys,
        metrics: Metrics,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self.health = Health(engines, scheduler)
        self._scheduler = scheduler
        self._config = config
        self._keys = keys
        self._metrics = metrics
        self._rates = Rates(config.max_requests_per_s)
        reader = BodyReader(
            # The body tells which engine it is for; that one's own limit is checked then.
            max_bytes=config.max_body_bytes or engines.limits().max_body_bytes,
            timeout_seconds=config.body_timeout_ms / 1000,
        )
        self._decider = Decider(engines, scheduler, reader, metrics, config)
        self._listed = decisions(engines, config.metadata_key)
        self._models = msgspec.json.encode(listing(engines, config))
        self._openapi = msgspec.json.encode(describe(config, engines))
        self._page = page(engines.first.card.name)
        self._engines = engines
        self.routes: dict[str, Route] = {
            "/v1/systemone": Route("POST", self._systemone),
            "/v1/systemone/tokens": Route("POST", self._decider.tokens),
            "/v1/decisions": Route("POST", self._decisions),
            "/api/alpha/decisions": Route("POST", self._systemone),
            "/v1/models": Route("GET", self._list_models),
            "/health": Route("GET", self._ready, open=True),
            "/health/ready": Route("GET", self._ready, open=True),
            "/health/live": Route("GET", self._live, open=True),
            "/metrics": Route("GET", self._show_metrics),
            "/version": Route("GET", self._version, open=True),
            "/openapi.json": Route("GET", self._describe),
            "/docs": Route("GET", self._docs),
        }
        if engines.asked_at_decide:
            self.routes[DECIDE_PATH] = Route("POST", self._decide)

    def close(self) -> None:
        self._decider.close()

    @property
    def busy(self) -> bool:
        """Whether a thread still prepares some request."""
        return self._decider.busy

    def cut(self) -> int:
        """Answer every request in progress 503 now. Returns how many."""
        return self._decider.cut()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']}")
        exchange = Exchange.begin(scope, receive)
        route = self.routes.get(exchange.path)
        exchange.route = exchange.path if route is not None else "other"
        reason: str | None = None
        try:
            response = await self._answer(exchange, route)
            status = response.status_code
        except Cancelled:
            response, status, reason = None, CLIENT_LEFT, "Cancelled"
        except AdjudgeError as error:
            response, status, reason = _refusal(error), error.status, type(error).__name__
            self._metrics.rejection(error)
        except Exception as error:
            log.error(
                "a request failed: %s at %s",
                type(error).__name__,
                where(error),
                extra={"facts": {"request_id": exchange.request_id}},
            )
            fault = InternalError("the server failed on this request; its log has the request id")
            response, status, reason = _refusal(fault), fault.status, type(error).__name__
            self._metrics.rejection(fault)
        if response is not None:
            if route is not None and status == MethodNotAllowed.status:
                response.headers["allow"] = route.method
            response.headers.update(exchange.reply_headers())
            await response(scope, receive, send)
        seconds = monotonic() - exchange.began
        self._metrics.request(exchange.route, status, seconds)
        exchange_line(exchange, status, seconds, reason)
        if self._tracing is not None:
            self._tracing.record(exchange, status, seconds)

    async def _answer(self, exchange: Exchange, route: Route | None) -> HttpResponse:
        if route is None:
            known = ", ".join(self.routes)
            if exchange.path == DECIDE_PATH:
                raise NotFound(
                    f"no model that is asked at {DECIDE_PATH} is loaded here; there are {known}"
                )
            raise NotFound(f"there is no such path; there are {known}")
        method = "GET" if exchange.method == "HEAD" else exchange.method
        if method != route.method:
            raise MethodNotAllowed(f"{exchange.path} takes {route.method}, not this method")
        if route.open:
            exchange.trusted = self._keys.accepts(exchange)
        else:
            self._keys.check(exchange)
        if method == "POST" and not self._keys:
            check_origin(exchange, self._config.cors_origin)
        if method == "POST" and self._rates and not exchange.own:
            self._rates.check(self._keys.caller(exchange))
        return await route.handler(exchange)

    async def _systemone(self, exchange: Exchange) -> HttpResponse:
        return await self._decider.decide(exchange, self._decider.systemone)

    async def _decide(self, exchange: Exchange) -> HttpResponse:
        return await self._decider.decide(exchange, self._decider.bare)

    async def _decisions(self, exchange: Exchange) -> HttpResponse:
        return await self._decider.decide(exchange, self._listed)

    async def _list_models(self, exchange: Exchange) -> HttpResponse:
        return HttpResponse(self._models, media_type="application/json")

    async def _ready(self, exchange: Exchange) -> HttpResponse:
        if b"deep=1" in exchange.scope["query_string"]:
            self._keys.check(exchange)
            return _json(*await deep(self.health, self.ask_itself))
        return _json(*self.health.report(details=exchange.trusted))

    async def _live(self, exchange: Exchange) -> HttpResponse:
        return _json(*self.health.alive())

    async def _show_metrics(self, exchange: Exchange) -> HttpResponse:
        text = self._metrics.text(
            healthy=self.health.state == "ready", pending=self._scheduler.pending
        )
        return HttpResponse(text, headers={"content-type": metrics_room.CONTENT_TYPE})

    async def _version(self, exchange: Exchange) -> HttpResponse:
        return _json(200, {"name": "adjudge", "version": adjudge.__version__})

    async def _describe(self, exchange: Exchange) -> HttpResponse:
        return HttpResponse(self._openapi, media_type="application/json")

    async def _docs(self, exchange: Exchange) -> HttpResponse:
        return HTMLResponse(self._page.html, headers=self._page.headers)

    async def ask_itself(self) -> None:
        """One small request to each engine through the whole path, as a client would send it.
        Raises AdjudgeError if one is not answered."""
        for name, door in self._engines.doors.items():
            await ask_app(self, name, door.family.limits)


def application(service: Service, config: ServiceConfig) -> ASGIApp:
    """The service behind its middleware."""
    if not config.cors_origin:
        return service
    return CORSMiddleware(
        service,
        allow_origins=config.cors_origin,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "server-timing", "retry-after", "retry-after-ms"],
        max_age=3600,
    )


def _refusal(error: AdjudgeError) -> HttpResponse:
    status, body, headers = error_body(error)
    if isinstance(error, RequestTimeout):
        headers["connection"] = "close"
    return _json(status, body, headers)


def _json(status: int, body: Any, headers: dict[str, str] | None = None) -> HttpResponse:
    # An engine's facts may be of types that JSON does not know; their text will do.
    content = msgspec.json.encode(body, enc_hook=str)
    return HttpResponse(content, status, headers, media_type="application/json")
