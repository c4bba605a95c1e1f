"""Connections: who is connected, until when each may take its time, and who must go when there is no more room.

In: TLS sockets, and what each is about. Out: sockets that are shut down when their time is over, whatever the other
side sends meanwhile. A newcomer takes the place of the one that has been waited for longest; one whose review is being
worked on stays. It reads and writes nothing.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable

MOST_CONNECTIONS = 512  # three API servers with 150 changes each under way; each costs some 60 KiB
_SWEEP_SECONDS = 0.25


class Connection:
    """One connection, to be told what it is about. Its methods belong to its own thread."""

    __slots__ = ("_clock", "_lock", "since", "sock", "until")

    def __init__(self, sock: socket.socket, lock: threading.Lock, clock: Callable[[], float]) -> None:
        self.sock, self._lock, self._clock = sock, lock, clock
        self.since = clock()
        self.until = math.inf

    @property
    def is_waited_for(self) -> bool:
        """Whether the other side has to do something next."""
        return self.until < math.inf

    def wait(self, seconds: float) -> None:
        """Let the other side take so long for what comes next."""
        with self._lock:
            self.since = self._clock()
            self.until = self.since + seconds

    def work(self) -> None:
        """It is our turn now, and nobody is to end this."""
        with self._lock:
            self.until = math.inf

    def cut(self) -> None:
        """Wake whoever reads or writes. The lock is held."""
        with contextlib.suppress(OSError):
            # SSLSocket.shutdown would drop its TLS state under its thread's feet: go to the socket below it.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


class Connections:
    """All connections. Any thread may call."""

    def __init__(self, most: int = MOST_CONNECTIONS, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)

    def start(self) -> None:
        """Begin to look at the time."""
        self._thread.start()

    def stop(self) -> None:
        """End all."""
        self._stop.set()
        with self._lock:
            for one in self._open:
                one.cut()

    def enter(self, sock: socket.socket, seconds: float) -> Connection | None:
        """Let a connection in, with so much time for what comes first; None when all others are worked on."""
        with self._lock:
            if len(self._open) >= self._most:
                waiting = min((one for one in self._open if one.is_waited_for), key=_since, default=None)
                if waiting is None:
                    return None
                waiting.cut()
                self._open.discard(waiting)
            made = Connection(sock, self._lock, self._clock)
            made.until = made.since + seconds
            self._open.add(made)
            return made

    def leave(self, connection: Connection) -> None:
        """Take note that a connection is about to be closed."""
        with self._lock:
            self._open.discard(connection)
            connection.until = math.inf

    def sweep(self) -> None:
        """End the connections whose time is over."""
        now = self._clock()
        with self._lock:
            for one in self._open:
                if one.until <= now:
                    one.cut()

    def _run(self) -> None:
        while not self._stop.wait(_SWEEP_SECONDS):
            self.sweep()


def _since(one: Connection) -> float:
    return one.since
