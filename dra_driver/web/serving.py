"""The server that browsers talk to: uvicorn, the tasks that run beside it, and the names in clients' certificates.

In: an application and a socket. Out: a server that runs until it is interrupted.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dra_driver.model.errors import NodeError
from dra_driver.web.connections import MAX_CONNECTIONS, BrowserConnections, Listener
from dra_driver.webhook.callers import names_of

_BACKLOG = 64
_TICK_SECONDS = 1.0  # uvicorn itself wakes ten times as often


class WebServer(uvicorn.Server):
    """A server that calls `begin` in its loop before it listens, and `end` before it waits for unfinished answers."""

    def __init__(self, config: ServerConfig, begin: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__(config)
        self._connections = config.connections
        self._begin, self._end = begin, end
        self._wake: Callable[[], object] = lambda: None  # until the loop runs

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen to browsers."""
        self._begin()
        await super().startup(sockets=[Listener(one, self._connections) for one in sockets or ()])

    async def main_loop(self) -> None:
        """Wait until the server is asked to end, waking once a second for the date in answers and late connections."""
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._wake = partial(loop.call_soon_threadsafe, asked.set)
        while not await self.on_tick(0):
            self._connections.sweep()
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), _TICK_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at once, not at the next tick."""
        super().handle_exit(sig, frame)
        self._wake()

    def ask_to_end(self) -> None:
        """End as after a signal. Any thread may call it."""
        self.should_exit = True
        self._wake()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the server."""
        self._end()
        await super().shutdown(sockets=sockets)


class ServerConfig(uvicorn.Config):
    """The configuration of a server, with its connections."""

    def __init__(self, app: ASGIApp, **options: Any) -> None:
        super().__init__(app, **options)
        self.connections = BrowserConnections()


class _NamedPeer(H11Protocol):
    """HTTP on a connection whose peer may have sent a certificate: its names are put into the scope of each request.

    Requests and answers have to be sent and taken in time.
    """

    config: ServerConfig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        names = names_of(connection.getpeercert() if connection is not None else None)
        opened = self.config.connections.of(transport.get_extra_info("socket").fileno())
        if opened is None:  # it was shut down during its handshake
            transport.abort()
            return
        inner = opened.limited(self.app)

        async def named(scope: Scope, receive: Receive, send: Send) -> None:
            scope["certificate_names"] = names
            await inner(scope, receive, send)

        self.app = named


def settings(app: ASGIApp, context: ssl.SSLContext | None = None) -> ServerConfig:
    """Return the configuration of a server of these pages; with a context, it speaks TLS."""
    tls: dict[str, Any] = {"ssl_context_factory": lambda *_: context} if context is not None else {}
    return ServerConfig(
        app,
        http=_NamedPeer,
        ws="none",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_level="warning",
        log_config=None if context is not None else uvicorn.config.LOGGING_CONFIG,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=2 * MAX_CONNECTIONS,  # requests; some outlive their connection for a moment
        timeout_graceful_shutdown=2,
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
