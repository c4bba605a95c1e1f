"""The open connections of a server: how many there may be, and how long each may keep the server waiting.

In: sockets as they are accepted, and what is going on with each. Out: connections that end when their time is over,
whatever the other side sends meanwhile. If there is no room for a new connection, the one that has kept the server
waiting longest is closed; a connection whose request is being answered stays. A handshake of TLS counts, too.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from asyncio import BaseTransport, WriteTransport
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

READ_BYTES = 16 * 1024  # what is read of a body before the application asks for more; the kernel doubles it


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
