"""From start to exit code: load, warm up, open the port, serve, drain or fail, leave.

SIGTERM, SIGINT   readiness turns 503; serve on for `ready_grace_ms`; close the port; answer
                  what was accepted within `drain_ms`; exit 0, or 5 if something was cut.
                  A second signal cuts at once. While loading: exit 0 at once.
a fault           everything pending is answered 503 at once, health turns 503 with the
                  reason, and the process exits with the fault's code a moment later.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from adjudge.errors import AdjudgeError, CheckpointError, ConfigError, DeviceError
from adjudge.scheduler import ExitCode, Fault, QueueLimits, Scheduler, Watchdog, Worker
from adjudge.scheduler.worker import where
from adjudge.service import journal
from adjudge.service.app import Service, application
from adjudge.service.engines import Engines
from adjudge.service.keys import Keys, load_keys
from adjudge.service.listener import HttpServer, bind, unusable, url_of
from adjudge.service.metrics import Metrics
from adjudge.service.tracing import Tracing, set_up

if TYPE_CHECKING:
    from adjudge.config import ServiceConfig
    from adjudge.engine_door import Door

log = logging.getLogger("adjudge.service")

FAULT_LINGER_SECONDS = 1.0
"""After a fault, how long clients get their errors and probes see the reason."""
LEAVE_SECONDS = 5.0
"""How long an idle worker may take to give the device back."""
CUT_SECONDS = 2.0
"""After the drain budget, how long the errors may take to be sent."""


Load = Callable[[], "Door | Mapping[str, Door]"]


def serve(load: Load, config: ServiceConfig) -> int:
    """Serve engines until told to stop. Returns an ExitCode.

    load: makes the engine, or several by the names that requests may call them, the default one
    first; runs in the worker thread. Does not return when that thread is stuck:
    the process then ends here, with the code.
    """
    journal.set_up(config)
    try:
        keys = load_keys(config)
        tracing = set_up() if config.tracing else None
        listener = bind(config.host, config.port)
    except ConfigError as error:
        log.error(error.message)
        return ExitCode.REFUSED
    life = Lifecycle(load, config, keys, listener, tracing)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(life.run())
    finally:
        listener.close()
        if tracing is not None:
            tracing.close()
    if life.worker.is_alive() or life.preparing:
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    return code


class Lifecycle:
    """One run of the server."""

    def __init__(
        self,
        load: Load,
        config: ServiceConfig,
        keys: Keys,
        listener: socket.socket,
        tracing: Tracing | None,
    ) -> None:
        self._tracing = tracing
        self._config = config
        self._keys = keys
        self._listener = listener
        self._metrics = Metrics()
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._faulted = asyncio.Event()
        self.scheduler = Scheduler(
            QueueLimits(jobs=config.max_queue_jobs, rows=config.max_queue_tokens),
            share=config.share_across_requests,
            on_pass=self._metrics.ran,
            on_fault=self._on_fault,
        )
        self.preparing = False
        """At the end: whether a thread still prepares a request that nobody waits for."""
        self.worker = Worker(self.scheduler, lambda: _by_name(load()), self._on_loaded)

    async def run(self) -> ExitCode:
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[Mapping[str, Door] | BaseException] = (
            self._loop.create_future()
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)
        began = monotonic()
        self.worker.start()
        await self._first_of(self._loaded, self._stop.wait())
        if not self._loaded.done():
            log.info("stopped while loading")
            return ExitCode.CLEAN
        loaded = self._loaded.result()
        if isinstance(loaded, BaseException):
            return _refused_load(loaded)
        watchdog = Watchdog(
            self.scheduler,
            limit_seconds=self._config.watchdog_ms / 1000,
            worker_alive=self.worker.is_alive,
        )
        watchdog.start()
        engines = Engines(loaded)
        service = Service(
            engines,
            self.scheduler,
            self._config,
            keys=self._keys,
            metrics=self._metrics,
            tracing=self._tracing,
        )
        try:
            code = await self._warm_up(service)
            if code is None:
                # What is loaded stays: without this, a full collection walks all of it, and every
                # request then under way waits up to 0.1 s.
                gc.collect()
                gc.freeze()
                facts = {
                    "url": url_of(self._listener),
                    "models": list(engines.doors),
                    "load_seconds": round(monotonic() - began, 3),
                }
                code = await self._serve(service, facts)
        finally:
            service.close()
            watchdog.end()
            self.scheduler.stop()
        if self.scheduler.fault is None and self.scheduler.running_since is None:
            await asyncio.to_thread(self.worker.join, LEAVE_SECONDS)
        self.preparing = service.busy
        return code

    async def _warm_up(self, service: Service) -> ExitCode | None:
        """None: the whole path works."""
        asked = asyncio.ensure_future(service.ask_itself())
        await self._first_of(asked, self._stop.wait())
        if not asked.done():
            asked.cancel()
            log.info("stopped while warming up")
            return ExitCode.CLEAN
        try:
            asked.result()
        except AdjudgeError as error:
            fault = self.scheduler.fault
            log.error("the warm-up failed: %s", fault.reason if fault else error.message)
            return ExitCode(fault.exit_code) if fault else ExitCode.FAULT
        return None

    async def _serve(self, service: Service, facts: dict[str, object]) -> ExitCode:
        drain_seconds = self._config.drain_ms / 1000
        server = HttpServer(
            application(service, self._config),
            grace_seconds=drain_seconds + CUT_SECONDS,
            head_seconds=self._config.head_timeout_ms / 1000,
        )
        try:
            self._listener.listen()
        except OSError as error:
            log.error(unusable(self._config.host, self._config.port, error).message)
            return ExitCode.REFUSED
        serving = asyncio.ensure_future(server.serve(sockets=[self._listener]))
        log.info("ready", extra={"facts": facts})
        sys.stdout.write(f"ready {facts['url']}\n")
        sys.stdout.flush()
        await self._first_of(serving, self._stop.wait(), self._faulted.wait())
        code = ExitCode.CLEAN
        if self._stop.is_set() and not self._faulted.is_set():
            code = await self._drain(service, server, serving)
        if self._faulted.is_set():
            await self._first_of(serving, self._stop_now.wait(), timeout=FAULT_LINGER_SECONDS)
            service.cut()
            server.finish(CUT_SECONDS)
            code = ExitCode(self.scheduler.fault.exit_code) if self.scheduler.fault else code
        await serving
        log.info("stopped", extra={"facts": {"exit_code": int(code)}})
        return code

    async def _drain(
        self, service: Service, server: HttpServer, serving: asyncio.Future[None]
    ) -> ExitCode:
        """Ready turns 503, then serve on, then finish what was accepted."""
        service.health.draining = True
        log.info("stopping", extra={"facts": {"pending": self.scheduler.pending[0]}})
        grace_seconds = self._config.ready_grace_ms / 1000
        drain_seconds = self._config.drain_ms / 1000
        await self._first_of(self._stop_now.wait(), self._faulted.wait(), timeout=grace_seconds)
        server.finish()
        await self._first_of(
            serving, self._stop_now.wait(), self._faulted.wait(), timeout=drain_seconds
        )
        if serving.done() or self._faulted.is_set():
            return ExitCode.CLEAN
        self.scheduler.close("the server is stopping")
        cut = service.cut()
        if cut:
            log.warning("the drain was cut", extra={"facts": {"requests": cut}})
        await self._first_of(serving, self._faulted.wait(), timeout=CUT_SECONDS)
        return ExitCode.DRAIN_CUT if cut else ExitCode.CLEAN

    async def _first_of(
        self, *waits: asyncio.Future[Any] | Coroutine[Any, Any, Any], timeout: float | None = None
    ) -> None:
        """Until one of these is done, or the time is over. Futures given stay as they are."""
        own = [
            asyncio.ensure_future(wait) for wait in waits if not isinstance(wait, asyncio.Future)
        ]
        given = [wait for wait in waits if isinstance(wait, asyncio.Future)]
        try:
            await asyncio.wait([*given, *own], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in own:
                task.cancel()

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    def _on_loaded(self, loaded: Mapping[str, Door] | BaseException) -> None:
        self._loop.call_soon_threadsafe(self._loaded.set_result, loaded)

    def _on_fault(self, fault: Fault) -> None:
        log.critical("the engine stopped: %s", fault.reason)
        self._loop.call_soon_threadsafe(self._faulted.set)


def _by_name(loaded: Door | Mapping[str, Door]) -> Mapping[str, Door]:
    return loaded if isinstance(loaded, Mapping) else {loaded.card.name: loaded}


def _refused_load(error: BaseException) -> ExitCode:
    if isinstance(error, DeviceError):
        log.error(error.message)
        return ExitCode.DEVICE_UNSOUND
    if isinstance(error, CheckpointError | ConfigError):
        log.error(error.message)
        return ExitCode.REFUSED
    log.error("loading failed at %s", where(error), exc_info=error)
    return ExitCode.FAULT


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return factory
