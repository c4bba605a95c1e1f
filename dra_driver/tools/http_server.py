"""What uvicorn lacks and both of our servers need: an end, bounded connections, and the peer's certificate.

In: an application, and limits of connections. Out: a uvicorn server that any thread may ask to end, and HTTP/1.1
connections that put the certificate of the other side into the state of each request. A connection ends when its time
is over, whatever the other side sends meanwhile. If there is no room for a new one, the one that has kept the server
waiting longest is closed; one whose request is being answered stays. A handshake of TLS counts, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import time
from asyncio import BaseTransport, WriteTransport, sslproto
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

READ_BYTES = 16 * 1024  # what is read of a body before the application asks for more; the kernel doubles it
_BACKLOG = 128
_TICK_SECONDS = 1.0  # how often the date in answers is renewed; uvicorn itself wakes ten times as often
_CLOSE_SECONDS = 1.0  # for the client's part in the end of TLS; answers that end a connection fit into its buffers
_UNSENT_BYTES = 16 * 1024  # of an answer, before the client's time to read it begins


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be, in all and of one address, and the seconds for each step of the other side."""

    connections: int
    of_peer: int
    handshake: float  # from the start of a connection until TLS is set up
    first: float  # from the start of a connection until the head of its first request has been read
    head: float  # from the first byte of a head to its last
    body: float  # for a whole body, from the moment when the application asks for it
    answer: float  # until enough of an answer has been taken that there is room for more
    following: float  # from the end of an answer until the head of the next request has been read


class OpenConnection:
    """One connection. `until` is the end of the time for which the server waits for the other side."""

    def __init__(self, sock: socket.socket, peer: str, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        self.sock, self.peer, self._limits, self._clock = sock, peer, limits, clock
        self._transport: WriteTransport | None = None
        self._has_begun, self._requests = False, 0
        self._began = self.since = clock()
        self._head_until = self._began + limits.handshake
        self._body_until = self._answer_until = math.inf

    @property
    def until(self) -> float:
        """The earliest of all ends; infinite while the other side waits for the server."""
        return min(self._head_until, self._body_until, self._answer_until)

    def made(self, transport: WriteTransport) -> None:
        """Wait for the first request, once TLS is set up."""
        self._transport = transport
        self._head_until = self._began + self._limits.first

    def begin_head(self) -> None:
        """Wait for the rest of a head."""
        if not self._has_begun:
            self._has_begun, self.since = True, self._clock()
            self._head_until = min(self._head_until, self.since + self._limits.head)

    def begin_taking(self) -> None:
        """Wait until the other side takes more of its answer."""
        self.since = self._clock()
        self._answer_until = self.since + self._limits.answer

    def end_taking(self) -> None:
        """Mark that there is room for more of the answer."""
        self._answer_until = math.inf

    def cut(self) -> None:
        """End the connection, whatever it is doing."""
        if self._transport is not None:
            self._transport.abort()
        else:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)  # the event loop then closes it

    def limited(self, app: ASGIApp) -> ASGIApp:
        """Return an application whose requests must arrive in time."""

        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            self._has_begun, self._head_until = False, math.inf
            self._requests += 1
            try:
                await app(scope, self._in_time(receive), send)
            finally:
                self._requests -= 1
                if not self._requests:  # the next one may have begun already
                    self.since = self._clock()
                    self._head_until = self.since + self._limits.following

        return limited

    def _in_time(self, receive: Receive) -> Receive:
        end, has_more = math.inf, True

        async def receive_in_time() -> Message:
            nonlocal end, has_more
            if not has_more:  # the application waits for the end of the connection
                return await receive()
            self.since = self._clock()
            self._body_until = end = min(end, self.since + self._limits.body)
            try:
                message = await receive()
            finally:
                self._body_until = math.inf
            has_more = bool(message.get("more_body"))
            return message

        return receive_in_time


class OpenConnections:
    """All connections of a server. Call all methods in the event loop."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._open: dict[int, OpenConnection] = {}

    def admit(self, sock: socket.socket, peer: str) -> bool:
        """Admit a connection that was just accepted; return whether there is room for it."""
        self._forget_closed()
        of_peer = [connection for connection in self._open.values() if connection.peer == peer]
        if len(of_peer) >= self._limits.of_peer and not self._cut_longest(of_peer):
            return False
        if len(self._open) >= self._limits.connections and not self._cut_longest(list(self._open.values())):
            return False
        self._open[sock.fileno()] = OpenConnection(sock, peer, self._limits, self._clock)
        return True

    def of(self, transport: BaseTransport) -> OpenConnection | None:
        """Return the connection of a transport; None if it was cut already."""
        return self._open.get(transport.get_extra_info("socket").fileno())

    def sweep(self) -> None:
        """End the connections whose time is over."""
        self._forget_closed()
        self._cut_until(self._clock())

    def cut_waiting(self) -> None:
        """End all connections but those whose requests are being answered."""
        self._forget_closed()
        self._cut_until(math.nextafter(math.inf, 0))

    def _forget_closed(self) -> None:
        self._open = {number: connection for number, connection in self._open.items() if _is_open(connection, number)}

    def _cut_until(self, end: float) -> None:
        for connection in [connection for connection in self._open.values() if connection.until <= end]:
            self._cut(connection)

    def _cut_longest(self, among: list[OpenConnection]) -> bool:
        waiting = [connection for connection in among if connection.until < math.inf]
        if waiting:
            self._cut(min(waiting, key=lambda connection: connection.since))
        return bool(waiting)

    def _cut(self, connection: OpenConnection) -> None:
        del self._open[connection.sock.fileno()]
        connection.cut()


class Listener(socket.socket):
    """A listening socket that accepts only connections for which there is room. It takes over another socket."""

    __slots__ = ("_connections",)

    def __init__(self, listening: socket.socket, connections: OpenConnections) -> None:
        super().__init__(fileno=listening.detach())
        self._connections = connections
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)  # connections inherit both
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvicorn writes head and body separately

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection for which there is room. Raises: BlockingIOError if there is none."""
        while True:
            sock, address = super().accept()
            if self._connections.admit(sock, str(address[0])):
                return sock, address
            sock.close()


def _is_open(connection: OpenConnection, descriptor: int) -> bool:
    return connection.sock.fileno() == descriptor


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
