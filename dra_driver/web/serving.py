"""The server that browsers talk to: uvicorn, and the tasks that run beside it.

In: an application and a socket. Out: a server that runs until it is interrupted.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from dra_driver.model.errors import NodeError
from dra_driver.webhook.http_server import HttpConnection, HttpServer, configuration

_BACKLOG = 64


class WebServer(HttpServer):
    """A server that calls `begin` in its loop before it listens, and `end` before it waits for unfinished answers."""

    def __init__(self, config: uvicorn.Config, begin: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__(config)
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
    tls: dict[str, Any] = {"ssl_context_factory": lambda *_: context} if context is not None else {}
    return configuration(
        app,
        http=HttpConnection,
        log_level="warning",
        log_config=None if context is not None else uvicorn.config.LOGGING_CONFIG,
        limit_concurrency=200,
        **tls,
    )


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises: NodeError for an address that is in use or belongs to another machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as fault:
        hint = "choose another port, or leave the option out to get one that is free"
        raise NodeError("port", f"cannot listen on {host}:{port}: {fault.strerror}", hint=hint) from fault
