"""A few small HTTP pages for probes and scrapes, which stay available whatever other clients do.

In: an address, and a callable for each page. Out: answers, one per connection. One thread serves all connections and
never waits for any of them: there are at most `MAX_CONNECTIONS`, a new one replaces the oldest, and each has a
deadline. So ten thousand clients that send nothing, or a byte a minute, can't delay the answer to a probe. A page that
is slow to render is rendered in its own thread, at most a few times a second, once for all clients that wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from dra_driver.telemetry.part_thread import PartThread
from dra_driver.telemetry.rendering import MAX_CONNECTIONS, Page, Renderer
from dra_driver.telemetry.status_connection import PageResponse, StatusConnection

log = logging.getLogger(__name__)

CONNECTION_SECONDS = 5.0  # the time limit for the whole request, and again for the answer
_BACKLOG = 4096  # the kernel reduces it to its own limit; a client that does not fit in retries only after a second
_ACCEPTED_AT_ONCE = 32  # after so many new connections, the open ones are served again
_FAULT_SECONDS = 0.05  # the pause after a connection could not be accepted because a resource ran out


class SocketEncryption(Protocol):
    """Turns an accepted connection into an encrypted one."""

    def secure(self, sock: socket.socket) -> socket.socket:
        """Return a socket that encrypts and never blocks. Raises: OSError if that is not possible now."""


class PageAccess(Protocol):
    """Decides who may see the pages that are rendered on request; the decision may take time."""

    def ask(self, token: str, decided: Callable[[PageResponse | None], None]) -> None:
        """Call `decided` later, from any thread, with the refusal, or with None for a reader who may see the page."""

    def stop(self) -> None:
        """Stop making decisions."""


class Port:
    """A server of `pages` by path. Those in `quick` must never wait for anything."""

    def __init__(
        self,
        address: tuple[str, int],
        pages: Mapping[str, Page],
        *,
        quick: Mapping[str, PageResponse],
        max_connections: int = MAX_CONNECTIONS,
        connection_s: float = CONNECTION_SECONDS,
        encryption: SocketEncryption | None = None,
        access: PageAccess | None = None,
    ) -> None:
        self._quick, self._maximum, self._connection_s = quick, max_connections, connection_s
        self._encryption, self._access = encryption, access
        self._listener = _listen(address)
        self.number = int(self._listener.getsockname()[1])
        self.address = f"[{address[0]}]:{self.number}" if ":" in address[0] else f"{address[0]}:{self.number}"
        self._wake_writer, self._wake_reader = socket.socketpair()
        self._renderers = {path: Renderer(page, self._rendered) for path, page in pages.items()}
        self._done: deque[tuple[StatusConnection, PageResponse]] = deque()
        self._connections: dict[StatusConnection, None] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._is_stopping = False
        for wake in (self._wake_writer, self._wake_reader):
            wake.setblocking(False)
        self._thread = PartThread("status", self._serve)

    def start(self) -> None:
        """Start answering. Raises: NodeError("node.thread")."""
        for one in (self._listener, self._wake_reader):
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        for renderer in self._renderers.values():
            renderer.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._is_stopping = True
        if self._access is not None:
            self._access.stop()
        for renderer in self._renderers.values():
            renderer.stop()
        self._wake()
        self._thread.release()
        if self._thread.is_alive():
            self._thread.join()
        for connection in list(self._connections):
            self._end(connection)
        for one in (self._listener, self._wake_writer, self._wake_reader):
            one.close()
        self._selector.close()

    # -- the serving thread ------------------------------------------------------------------------------------------

    def _serve(self, _thread: PartThread) -> None:
        while not self._is_stopping:
            try:
                for key, _ in self._selector.select(self._wait_s()):
                    self._ready(key.fileobj, key.data)
                self._end_late()
            except Exception:
                log.exception("status port failed")
                time.sleep(_FAULT_SECONDS)

    def _ready(self, sock: object, connection: StatusConnection | None) -> None:
        if connection is not None:
            self._continue(connection)
        elif sock is self._listener:
            self._accept()
        else:
            with contextlib.suppress(BlockingIOError):
                self._wake_reader.recv(4096)
            while self._done:
                done, answer = self._done.popleft()
                if done in self._connections:
                    self._answer(done, answer)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._end_oldest()
                time.sleep(_FAULT_SECONDS)
                return
            sock.setblocking(False)
            try:
                sock = self._encryption.secure(sock) if self._encryption is not None else sock
            except OSError:
                sock.close()
                continue
            if len(self._connections) >= self._maximum:
                self._end_oldest()
            connection = StatusConnection(sock, time.monotonic() + self._connection_s)
            self._connections[connection] = None
            self._selector.register(sock, selectors.EVENT_READ, connection)
            self._continue(connection)

    def _continue(self, connection: StatusConnection) -> None:
        if connection not in self._connections:  # it has ended since the selector returned it
            return
        try:
            if connection.is_asked:
                if connection.send():
                    self._end(connection)
                return
            asked = connection.read()
        except OSError:
            self._end(connection)
            return
        if isinstance(asked, PageResponse):
            self._answer(connection, asked)
        elif asked is None:
            return
        elif asked in self._quick:
            self._answer(connection, self._quick[asked])
        elif asked in self._renderers:
            self._selector.unregister(connection.sock)
            self._request_page(connection, self._renderers[asked])
        else:
            known = ", ".join([*self._renderers, *self._quick])
            self._answer(connection, PageResponse(404, f"try {known}\n".encode()))

    def _request_page(self, connection: StatusConnection, page: Renderer) -> None:
        """Request a page for a connection, as soon as it is known that its client may see it."""
        if self._access is None:
            page.ask(connection)
            return

        def decided(refusal: PageResponse | None) -> None:
            if refusal is None:
                page.ask(connection)
            else:
                self._rendered([connection], refusal)

        self._access.ask(connection.token(), decided)

    def _answer(self, connection: StatusConnection, answer: PageResponse) -> None:
        connection.until = time.monotonic() + self._connection_s
        try:
            is_sent = connection.answer(answer)
        except OSError:
            is_sent = True
        if is_sent:
            self._end(connection)
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.sock)
        self._selector.register(connection.sock, selectors.EVENT_WRITE, connection)

    def _end(self, connection: StatusConnection) -> None:
        del self._connections[connection]
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.end()

    def _end_oldest(self) -> None:
        if self._connections:
            self._end(next(iter(self._connections)))

    def _end_late(self) -> None:
        now = time.monotonic()
        for connection in [connection for connection in self._connections if connection.until <= now]:
            self._end(connection)

    def _wait_s(self) -> float | None:
        if not self._connections:
            return None
        return max(0.0, min(connection.until for connection in self._connections) - time.monotonic())

    # -- the rendering threads ---------------------------------------------------------------------------------------

    def _rendered(self, connections: list[StatusConnection], answer: PageResponse) -> None:
        self._done.extend((connection, answer) for connection in connections)
        self._wake()

    def _wake(self) -> None:
        """Wake the serving thread, which may be the calling one: a full socket will wake it in any case."""
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"!")


def _listen(address: tuple[str, int]) -> socket.socket:
    """Return a listening socket, without a host on both IP versions, so that the kubelet's probes reach it."""
    is_for_both = not address[0] and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_for_both or ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=is_for_both)
