"""What uvicorn lacks and both of our servers need: an end, bounded connections, and the peer's certificate.

In: an application, and limits of connections. Out: a uvicorn server that any thread may ask to end, and HTTP/1.1
connections that put the certificate of the other side into the state of each request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from dra_driver.serving.connections import READ_BYTES, ConnectionLimits, Listener, OpenConnection, OpenConnections

_BACKLOG = 128
_TICK_SECONDS = 1.0  # how often the date in answers is renewed; uvicorn itself wakes ten times as often
_CLOSE_SECONDS = 1.0  # for the client's part in the end of TLS; answers that end a connection fit into its buffers
_UNSENT_BYTES = 16 * 1024  # of an answer, before the client's time to read it begins


class HttpConnection(H11Protocol):
    """HTTP/1.1 on a bounded connection, with `client_certificate` in the state of each request's scope.

    It is what `ssl` says of a certificate that it has verified; {} or None without one.
    """

    def __init__(self, config: uvicorn.Config, state: Any, connections: OpenConnections) -> None:
        super().__init__(config, state, {})
        self._connections = connections
        self._open: OpenConnection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request; bound what is kept of what the client sends and does not read."""
        super().connection_made(transport)
        opened = self._connections.of(transport)
        if opened is None:  # it was cut during its handshake
            transport.abort()
            return
        opened.made(transport)
        transport.set_write_buffer_limits(_UNSENT_BYTES)
        if self.scheme == "https":
            secured: Any = transport
            secured.set_read_buffer_limits(READ_BYTES)
        self._open, self.app = opened, opened.limited(self.app)
        self.app_state["client_certificate"] = transport.get_extra_info("peercert")

    def handle_events(self) -> None:
        """Handle what has arrived. Of a body no more is read until the application asks for it."""
        super().handle_events()
        client = self.conn.their_state
        if client is h11.IDLE and self.conn.trailing_data[0]:
            self._open.begin_head()
        elif client is h11.SEND_BODY and self.cycle.body and not self.cycle.response_complete:
            self.flow.pause_reading()

    def pause_writing(self) -> None:
        """Limit the time in which the client has to read its answer."""
        super().pause_writing()
        self._open.begin_taking()

    def resume_writing(self) -> None:
        """End that time, because the client has read enough."""
        super().resume_writing()
        self._open.end_taking()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP; end the connection if its request has been answered already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()  # where uvicorn would raise an error


class HttpServer(uvicorn.Server):
    """A server with bounded connections that ends at once when it is asked to, by a signal or by a thread."""

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self.connections = OpenConnections(limits)
        self._wake: Callable[[], object] = lambda: None  # until the loop runs

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections on the sockets."""
        # asyncio writes zeros into a buffer of this size for each TLS connection: 256 KiB, unless it is made smaller.
        sslproto.SSLProtocol.max_size = READ_BYTES
        make = partial(HttpConnection, self.config, self.server_state, self.connections)
        listen = partial(asyncio.get_running_loop().create_server, make, backlog=_BACKLOG)
        if self.config.ssl is not None:
            listen = partial(listen, ssl=self.config.ssl, ssl_shutdown_timeout=_CLOSE_SECONDS)
        self.servers = [await listen(sock=Listener(sock, self.connections)) for sock in sockets or ()]
        self.started = True

    async def main_loop(self) -> None:
        """Wait until the server is asked to end, waking once a second for the date in answers and late connections."""
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._wake = partial(loop.call_soon_threadsafe, asked.set)
        while not await self.on_tick(0):
            self.connections.sweep()
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), _TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all connections, those whose request is being answered after their answer."""
        self.connections.cut_waiting()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at once, not at the next tick."""
        super().handle_exit(sig, frame)
        self._wake()

    def ask_to_end(self) -> None:
        """End as after a signal. Any thread may call it."""
        self.should_exit = True
        self._wake()


def configuration(app: ASGIApp, context: ssl.SSLContext | None, **more: Any) -> uvicorn.Config:
    """Return uvicorn's configuration for one of our servers; with a context, it speaks TLS."""
    tls: dict[str, Any] = {"ssl_context_factory": lambda *_: context} if context is not None else {}
    return uvicorn.Config(
        app,
        ws="none",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        **tls,
        **more,
    )
