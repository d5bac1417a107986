"""The socket and the HTTP server: bound early, opened late, closed in the right order."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from adjudge.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections (30 s and 60 s), so that they close, not the server
under a request that is already on its way."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: the port is taken, and connections are refused.

    Raises ConfigError when the address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"host {host} is not an address of this machine: {error}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise unusable(host, port, error) from None
    return listener


def unusable(host: str, port: int, error: OSError) -> ConfigError:
    """What to tell about an address that cannot be bound or listened on."""
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"port {port} on {host} is in use; stop what listens there, or choose another port"
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"port {port} on {host} needs rights this user lacks; choose 1024 or more"
        )
    return ConfigError(f"{host} port {port} cannot be used: {error.strerror}")


def url_of(listener: socket.socket) -> str:
    """The address in the form that clients take."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """uvicorn on our socket, with signals left to the lifecycle."""

    def __init__(self, app: ASGIApp, *, grace_seconds: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                backlog=BACKLOG,
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(grace_seconds)),
                ws="none",
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def finish(self, grace_seconds: float | None = None) -> None:
        """Accept no more connections and end when those there are done, or after the grace."""
        if grace_seconds is not None:
            self.config.timeout_graceful_shutdown = max(1, round(grace_seconds))
        self.should_exit = True
