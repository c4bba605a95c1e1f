"""The open connections: how long each may take, and which one is closed when there is no more room.

In: a listening socket. Out: TLS connections whose requests uvicorn parses, each closed when its client is too slow. If
there is no room for a new connection, the one that has kept the server waiting longest is closed; a connection whose
review is being worked on stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from asyncio import sslproto
from typing import Any

import h11
import uvicorn

from dra_driver.webhook.http_server import HttpConnection, HttpServer

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512  # three API servers with 150 concurrent changes each; each connection costs some 60 KiB
HANDSHAKE_SECONDS = 5.0
IDLE_SECONDS = 90
READ_SECONDS = 5.0  # for head and body together
WRITE_SECONDS = 5.0
_CLOSE_SECONDS = 1.0  # for the client's part in the end of TLS; answers that end a connection fit into its buffers
READ_BYTES = 16 * 1024  # what is read of a body before the application asks for more; the kernel doubles it
_UNSENT_BYTES = 16 * 1024  # of an answer, before the client's time to read it begins
_RETRY_SECONDS = 0.1  # after a connection could not be accepted, for example for lack of descriptors


class OpenConnections:
    """All connections, and those that wait for their clients, the longest waiting first. The event loop alone asks."""

    def __init__(self) -> None:
        self._all: set[ClientConnection] = set()
        self._waiting: dict[ClientConnection, None] = {}

    def enter(self, connection: ClientConnection) -> bool:
        """Admit a connection; return whether there is room, which is made by closing the longest waiting one."""
        if len(self._all) >= MAX_CONNECTIONS:
            longest = next(iter(self._waiting), None)
            if longest is None:
                return False
            longest.cut()
        self._all.add(connection)
        self.wait(connection)
        return True

    def wait(self, connection: ClientConnection) -> None:
        """Mark that the server begins to wait for the client."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def work(self, connection: ClientConnection) -> None:
        """Mark that the server works on a review, so the connection must not be closed."""
        self._waiting.pop(connection, None)

    def leave(self, connection: ClientConnection) -> None:
        """Forget a connection."""
        self._all.discard(connection)
        self._waiting.pop(connection, None)

    def cut_waiting(self) -> None:
        """Close all connections on which no review is being worked on."""
        for connection in list(self._waiting):
            connection.cut()


class ClientConnection(HttpConnection):
    """One connection. uvicorn bounds how long it may be idle; here is the time for a request and for its answer."""

    def __init__(self, config: uvicorn.Config, state: Any, others: OpenConnections) -> None:
        super().__init__(config, state, {})
        self.handshake: asyncio.Task[None] | None = None
        self.is_secured = False
        self._others = others
        self._until_read: asyncio.TimerHandle | None = None
        self._until_written: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what is kept of what the client sends and does not read; begin to wait for its first request."""
        super().connection_made(transport)
        self.is_secured = True
        secured: Any = transport
        secured.set_read_buffer_limits(READ_BYTES)
        secured.set_write_buffer_limits(_UNSENT_BYTES)
        self._others.wait(self)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def handle_events(self) -> None:
        """Handle what has arrived. The time for a request runs from its first byte until its body is complete."""
        super().handle_events()
        client = self.conn.their_state
        if client is h11.SEND_BODY or (client is h11.IDLE and self.conn.trailing_data[0]):
            if self._until_read is None:
                self._others.wait(self)
                self._until_read = self.loop.call_later(READ_SECONDS, self.cut)
        else:
            self._stop(self._until_read)
            self._until_read = None
            if client in (h11.DONE, h11.MUST_CLOSE):
                self._others.work(self)
        if client is h11.SEND_BODY and self.cycle.body and not self.cycle.response_complete:
            self.flow.pause_reading()  # until the application asks for more, which may wait for its turn

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._others.wait(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Limit the time in which the client has to read its answer."""
        super().pause_writing()
        self._until_written = self.loop.call_later(WRITE_SECONDS, self.cut)

    def resume_writing(self) -> None:
        """End that time, because the client has read enough."""
        super().resume_writing()
        self._stop(self._until_written)

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for another connection."""
        self.forget()
        super().connection_lost(exc)

    def forget(self) -> None:
        """Count the connection no longer."""
        for timer in (self._until_read, self._until_written, self.timeout_keep_alive_task):
            self._stop(timer)
        self._others.leave(self)

    def cut(self) -> None:
        """End the connection, whatever it is doing."""
        self.forget()
        if self.is_secured:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class ReviewHttpServer(HttpServer):
    """uvicorn's server, except that it counts connections from the moment when they are accepted."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext) -> None:
        super().__init__(config)
        self._context = context
        self._connections = OpenConnections()
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections on the socket."""
        [listening] = sockets or []
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)  # connections inherit both
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvicorn writes head and body separately
        # asyncio writes zeros into a buffer of this size for each TLS connection: 256 KiB, unless it is made smaller.
        sslproto.SSLProtocol.max_size = READ_BYTES
        self.servers = []
        self._accepting = asyncio.create_task(self._accept(listening))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all connections, those with a review once it is answered."""
        if self._accepting is not None:
            self._accepting.cancel()
        self._connections.cut_waiting()
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError:
                log.debug("connection not accepted", exc_info=True)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            connection = ClientConnection(self.config, self.server_state, self._connections)
            if self._connections.enter(connection):
                connection.handshake = asyncio.create_task(self._secure(connection, sock))
                await asyncio.sleep(0)  # the handshake begins, even where the next connection waits already
            else:
                sock.close()

    async def _secure(self, connection: ClientConnection, sock: socket.socket) -> None:
        """Do the TLS handshake."""
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(OSError):  # port scans, strangers' certificates, clients that are too slow
                await loop.connect_accepted_socket(
                    lambda: connection,
                    sock,
                    ssl=self._context,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                    ssl_shutdown_timeout=_CLOSE_SECONDS,
                )
        finally:
            if not connection.is_secured:
                connection.forget()
                sock.close()
