"""A whole server on a free port inside the test's process, with a fake engine behind it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from adjudge.config import ServiceConfig
from adjudge.scheduler import Fault, QueueLimits, Scheduler, Worker
from adjudge.service.app import Service, application
from adjudge.service.engines import Engines
from adjudge.service.keys import load_keys
from adjudge.service.listener import HttpServer, bind, url_of
from adjudge.service.metrics import Metrics
from tests.fake_engine import FakeEngine

SOON = 20.0
"""Seconds after which a wait that should be over at once counts as failed."""

NOUL = {"type": "noul", "instructions": "Is it wet?"}
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": {"a": "first", "b": None}}
SCORE = {"type": "score", "instructions": "How much?", "criteria": ["none", "some", "all"]}


@dataclass(slots=True)
class Rig:
    """engine, scheduler and service behind `url`; client: to ask it; faults: what was found."""

    url: str
    engine: FakeEngine
    scheduler: Scheduler
    service: Service
    client: httpx.Client
    faults: list[Fault]

    def ask(self, body: Any = None, path: str = "/v1/systemone", **options: Any) -> httpx.Response:
        """POST a body: bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | options.pop("headers", {})
        return self.client.post(path, content=content, headers=headers, **options)

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port or 80


@contextmanager
def running(
    engine: FakeEngine | None = None, *, more: dict[str, FakeEngine] | None = None, **settings: Any
) -> Iterator[Rig]:
    """A server with these settings, stopped at the end. Fails if something is left pending.

    more: further engines by name, beside the first.
    """
    config = ServiceConfig(port=0, **settings)
    fake = engine or FakeEngine()
    engines = {fake.card.name: fake} | (more or {})
    metrics = Metrics()
    faults: list[Fault] = []
    scheduler = Scheduler(
        QueueLimits(jobs=config.max_queue_jobs, rows=config.max_queue_tokens),
        share=config.share_across_requests,
        on_pass=metrics.ran,
        on_fault=faults.append,
    )
    loaded = threading.Event()
    worker = Worker(scheduler, lambda: engines, lambda doors: loaded.set())
    worker.start()
    assert loaded.wait(SOON)
    service = Service(Engines(engines), scheduler, config, keys=load_keys(config), metrics=metrics)
    listener = bind(config.host, config.port)
    listener.listen()
    server = HttpServer(
        application(service, config), grace_seconds=5, head_seconds=config.head_timeout_ms / 1000
    )
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), name="rig", daemon=True
    )
    thread.start()
    url = url_of(listener)
    try:
        with httpx.Client(base_url=url, timeout=SOON) as client:
            yield Rig(url, fake, scheduler, service, client, faults)
    finally:
        for one in engines.values():
            one.gate.set()
        server.finish()
        thread.join(SOON)
        listener.close()
        service.close()
        scheduler.stop()
        worker.join(SOON)
    assert not thread.is_alive()
    assert not worker.is_alive()
    assert scheduler.pending == (0, 0)
