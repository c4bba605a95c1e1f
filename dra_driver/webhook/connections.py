"""The open connections: how long each may take, and which one is closed when there is no more room.

In: TLS sockets, and the state of each. Out: sockets that are shut down when their time is over, whatever the other side
sends meanwhile. If there is no room for a new connection, the one that has kept the server waiting longest is closed;
a connection whose review is being worked on stays. Nothing is read from a connection or written to it here.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable

from dra_driver.telemetry.loop import Loop

MAX_CONNECTIONS = 512  # three API servers with 150 concurrent changes each; each connection costs some 60 KiB
_SWEEP_SECONDS = 0.25


class ClientConnection:
    """One connection, whose own thread reports what it is doing. The methods may be called only by that thread."""

    __slots__ = ("_clock", "_lock", "since", "sock", "until")

    def __init__(self, sock: socket.socket, lock: threading.Lock, clock: Callable[[], float]) -> None:
        self.sock, self._lock, self._clock = sock, lock, clock
        self.since = clock()
        self.until = math.inf

    @property
    def is_waiting_for_client(self) -> bool:
        """Whether the server is waiting for the client, and not the client for the server."""
        return self.until < math.inf

    def wait(self, seconds: float) -> None:
        """Start to wait for the other side, for at most `seconds`."""
        with self._lock:
            self.since = self._clock()
            self.until = self.since + seconds

    def work(self) -> None:
        """Mark that the server is working on a review, so the connection must not be closed."""
        with self._lock:
            self.until = math.inf

    def cut(self) -> None:
        """Shut the socket down, which wakes a thread that reads or writes. The caller holds the lock."""
        with contextlib.suppress(OSError):
            # SSLSocket.shutdown would drop the TLS state while another thread uses it: shut the plain socket down.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


class ClientConnections:
    """All connections. Any thread may call the methods."""

    def __init__(self, maximum: int = MAX_CONNECTIONS, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._maximum, self._clock = maximum, clock
        self._lock = threading.Lock()
        self._open: set[ClientConnection] = set()
        self._loop = Loop("connections", self._turn, failure="connections not checked", fault_s=_SWEEP_SECONDS)

    def start(self) -> None:
        """Start the thread that enforces the time limits."""
        self._loop.start()

    def stop(self) -> None:
        """End the thread and all connections."""
        self._loop.stop()
        with self._lock:
            for one in self._open:
                one.cut()

    def enter(self, sock: socket.socket, seconds: float) -> ClientConnection | None:
        """Admit a connection, with the given time for its first step; return None if all others are being worked on."""
        with self._lock:
            if len(self._open) >= self._maximum:
                waiting = min((one for one in self._open if one.is_waiting_for_client), key=_since, default=None)
                if waiting is None:
                    return None
                waiting.cut()
                self._open.discard(waiting)
            made = ClientConnection(sock, self._lock, self._clock)
            made.until = made.since + seconds
            self._open.add(made)
            return made

    def leave(self, connection: ClientConnection) -> None:
        """Forget a connection that is about to be closed."""
        with self._lock:
            self._open.discard(connection)
            connection.until = math.inf

    def sweep(self) -> None:
        """Shut down the connections whose time is over."""
        now = self._clock()
        with self._lock:
            for one in self._open:
                if one.until <= now:
                    one.cut()

    def _turn(self) -> float:
        self.sweep()
        return _SWEEP_SECONDS


def _since(one: ClientConnection) -> float:
    return one.since
