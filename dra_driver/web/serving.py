"""The server that browsers talk to: its limits, and the tasks that run beside it.

In: an application and a socket. Out: a server that runs until it is interrupted.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from dra_driver.model.errors import NodeError
from dra_driver.serving.http_server import ConnectionLimits, HttpServer, configuration

LIMITS = ConnectionLimits(
    connections=256,
    of_peer=192,  # all viewers behind one proxy, or behind kubectl port-forward, are one peer
    handshake=10.0,
    first=10.0,
    head=10.0,
    body=20.0,
    answer=30.0,
    following=30.0,
)
_BACKLOG = 64


class WebServer(HttpServer):
    """A server that calls `begin` in its loop before it listens, and `end` before it waits for unfinished answers."""

    def __init__(self, config: uvicorn.Config, begin: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__(config, LIMITS)
        self._begin, self._end = begin, end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen to browsers."""
        self._begin()
        await super().startup(sockets=sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the server."""
        self._end()
        await super().shutdown(sockets=sockets)


def settings(app: ASGIApp, context: ssl.SSLContext | None = None) -> uvicorn.Config:
    """Return the configuration of a server of these pages; with a context, it speaks TLS."""
    return configuration(
        app,
        context,
        log_level="warning",
        log_config=None if context is not None else uvicorn.config.LOGGING_CONFIG,
        limit_concurrency=2 * LIMITS.connections,  # requests; some outlive their connection for a moment
    )


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises: NodeError for an address that is in use or belongs to another machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as fault:
        hint = "choose another port, or leave the option out to get one that is free"
        raise NodeError("port", f"cannot listen on {host}:{port}: {fault.strerror}", hint=hint) from fault
