"""The open connections of browsers: how many there may be, and how long each may keep the console waiting.

In: sockets as they are accepted, and what is going on with each. Out: sockets that are shut down when their time is
over, whatever the other side sends meanwhile. If there is no room for a new connection, the one that has kept the
console waiting longest is closed; a connection whose request is being answered stays. A handshake of TLS counts, too.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_CONNECTIONS = 256
MAX_OF_PEER = 192  # all viewers behind one proxy, or behind kubectl port-forward, are one peer
HEAD_SECONDS = 10.0  # from the start of a connection until the head of its first request has been read
BODY_SECONDS = 20.0  # for the whole body of a request
SEND_SECONDS = 30.0  # for a part of an answer; and for the end of an answer and the head of the next request


class BrowserConnection:
    """One connection. `until` is the end of the time for which the console waits for the other side."""

    __slots__ = ("_clock", "peer", "since", "sock", "until")

    def __init__(self, sock: socket.socket, peer: str, clock: Callable[[], float]) -> None:
        self.sock, self.peer, self._clock = sock, peer, clock
        self.since = clock()
        self.until = self.since + HEAD_SECONDS

    def wait(self, seconds: float) -> None:
        """Start to wait for the other side."""
        self.since = self._clock()
        self.until = self.since + seconds

    def work(self) -> None:
        """Mark that the other side waits for the console."""
        self.until = math.inf

    def cut(self) -> None:
        """Shut the socket down; the event loop then closes it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def limited(self, app: ASGIApp) -> ASGIApp:
        """Return an application whose requests must arrive, and whose answers must be taken, in time."""

        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            body_until, has_more = math.inf, True

            async def receive_in_time() -> Message:
                nonlocal body_until, has_more
                if not has_more:  # the application waits for the end of the connection
                    return await receive()
                body_until = min(body_until, self._clock() + BODY_SECONDS)
                self.wait(body_until - self._clock())
                message = await receive()
                self.work()
                has_more = bool(message.get("more_body"))
                return message

            async def send_in_time(message: Message) -> None:
                self.wait(SEND_SECONDS)
                await send(message)
                self.work()

            self.work()
            try:
                await app(scope, receive_in_time, send_in_time)
            finally:
                self.wait(SEND_SECONDS)

        return limited


class BrowserConnections:
    """All connections of a server. Call all methods in the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[int, BrowserConnection] = {}

    def admit(self, sock: socket.socket, peer: str) -> bool:
        """Admit a connection that was just accepted; return whether there is room for it."""
        self._forget_closed()
        of_peer = [one for one in self._open.values() if one.peer == peer]
        if len(of_peer) >= MAX_OF_PEER and not self._cut_longest(of_peer):
            return False
        if len(self._open) >= MAX_CONNECTIONS and not self._cut_longest(list(self._open.values())):
            return False
        self._open[sock.fileno()] = BrowserConnection(sock, peer, self._clock)
        return True

    def of(self, descriptor: int) -> BrowserConnection | None:
        """Return the connection with a descriptor; None if it was shut down already."""
        return self._open.get(descriptor)

    def sweep(self) -> None:
        """Shut down the connections whose time is over."""
        self._forget_closed()
        now = self._clock()
        for one in [one for one in self._open.values() if one.until <= now]:
            self._cut(one)

    def _forget_closed(self) -> None:
        self._open = {number: one for number, one in self._open.items() if one.sock.fileno() == number}

    def _cut_longest(self, among: list[BrowserConnection]) -> bool:
        waiting = [one for one in among if one.until < math.inf]
        if waiting:
            self._cut(min(waiting, key=lambda one: one.since))
        return bool(waiting)

    def _cut(self, one: BrowserConnection) -> None:
        del self._open[one.sock.fileno()]
        one.cut()


class Listener(socket.socket):
    """A listening socket that accepts only connections for which there is room. It takes over another socket."""

    __slots__ = ("_connections",)

    def __init__(self, listening: socket.socket, connections: BrowserConnections) -> None:
        super().__init__(fileno=listening.detach())
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection for which there is room. Raises: BlockingIOError if there is none."""
        while True:
            sock, address = super().accept()
            if self._connections.admit(sock, str(address[0])):
                return sock, address
            sock.close()
