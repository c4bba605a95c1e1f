"""A few small HTTP pages for probes and scrapes, which stay available whoever else connects.

In: an address, and a callable for each page. Out: answers, one per connection. One thread serves all connections and
never waits for any of them: there are at most `MOST_VISITS`, the newest takes the place of the oldest, and each has a
deadline. So ten thousand clients that send nothing, or a byte a minute, can't delay the answer to a probe. A page that
is slow to render is rendered in its own thread, at most a few times a second, once for all who wait.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from dra_driver.telemetry.rendering import MOST_VISITS, Page, Renderer
from dra_driver.telemetry.visits import PageAnswer, Visit

log = logging.getLogger(__name__)

VISIT_SECONDS = 5.0  # for the whole request, and again for the answer
_BACKLOG = 4096  # the kernel reduces it to its own limit; a client that does not fit in retries only after a second
_ACCEPTED_AT_ONCE = 32  # before the open connections are served again
_FAULT_SECONDS = 0.05  # to wait after a connection could not be accepted, because a resource ran out


class Securing(Protocol):
    """What turns an accepted connection into an encrypted one."""

    def secure(self, sock: socket.socket) -> socket.socket:
        """Return a socket that encrypts and never blocks. Raises: OSError if that is not possible now."""


class Gate(Protocol):
    """What decides, in its own time, who may see the pages that are made when they are asked for."""

    def ask(self, token: str, decided: Callable[[PageAnswer | None], None]) -> None:
        """Call `decided` later, from any thread, with None for a reader who may, and with the refusal otherwise."""

    def stop(self) -> None:
        """Decide nothing more."""


class Port:
    """A server of `pages` by path. Those in `quick` must never wait for anything."""

    def __init__(
        self,
        address: tuple[str, int],
        pages: Mapping[str, Page],
        *,
        quick: Mapping[str, PageAnswer],
        most_visits: int = MOST_VISITS,
        visit_s: float = VISIT_SECONDS,
        securing: Securing | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._quick, self._most, self._visit_s = quick, most_visits, visit_s
        self._securing, self._gate = securing, gate
        self._listener = _listen(address)
        self.number = int(self._listener.getsockname()[1])
        self.address = f"[{address[0]}]:{self.number}" if ":" in address[0] else f"{address[0]}:{self.number}"
        self._bell, self._ear = socket.socketpair()
        self._renderers = {path: Renderer(page, self._rendered) for path, page in pages.items()}
        self._done: deque[tuple[Visit, PageAnswer]] = deque()
        self._visits: dict[Visit, None] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name="status", daemon=True)

    def start(self) -> None:
        """Start answering."""
        for one in (self._listener, self._ear):
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        for renderer in self._renderers.values():
            renderer.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._is_stopping = True
        if self._gate is not None:
            self._gate.stop()
        for renderer in self._renderers.values():
            renderer.stop()
        self._ring()
        if self._thread.is_alive():
            self._thread.join()
        for visit in list(self._visits):
            self._end(visit)
        for one in (self._listener, self._bell, self._ear):
            one.close()
        self._selector.close()

    # -- the serving thread ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._is_stopping:
            try:
                for key, _ in self._selector.select(self._wait_s()):
                    self._ready(key.fileobj, key.data)
                self._end_late()
            except Exception:
                log.exception("status port failed")
                time.sleep(_FAULT_SECONDS)

    def _ready(self, sock: object, visit: Visit | None) -> None:
        if visit is not None:
            self._go_on(visit)
        elif sock is self._listener:
            self._accept()
        else:
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(4096)
            while self._done:
                done, answer = self._done.popleft()
                if done in self._visits:
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
                sock = self._securing.secure(sock) if self._securing is not None else sock
            except OSError:
                sock.close()
                continue
            if len(self._visits) >= self._most:
                self._end_oldest()
            visit = Visit(sock, time.monotonic() + self._visit_s)
            self._visits[visit] = None
            self._selector.register(sock, selectors.EVENT_READ, visit)
            self._go_on(visit)

    def _go_on(self, visit: Visit) -> None:
        if visit not in self._visits:  # it has ended since the selector returned it
            return
        try:
            if visit.is_asked:
                if visit.send():
                    self._end(visit)
                return
            asked = visit.read()
        except OSError:
            self._end(visit)
            return
        if isinstance(asked, PageAnswer):
            self._answer(visit, asked)
        elif asked is None:
            return
        elif asked in self._quick:
            self._answer(visit, self._quick[asked])
        elif asked in self._renderers:
            self._selector.unregister(visit.sock)
            self._show(visit, self._renderers[asked])
        else:
            known = ", ".join([*self._renderers, *self._quick])
            self._answer(visit, PageAnswer(404, f"try {known}\n".encode()))

    def _show(self, visit: Visit, page: Renderer) -> None:
        """Have a page made for a visit, as soon as it is known that its client may see it."""
        if self._gate is None:
            page.ask(visit)
            return

        def decided(refusal: PageAnswer | None) -> None:
            if refusal is None:
                page.ask(visit)
            else:
                self._rendered([visit], refusal)

        self._gate.ask(visit.token(), decided)

    def _answer(self, visit: Visit, answer: PageAnswer) -> None:
        visit.until = time.monotonic() + self._visit_s
        try:
            is_sent = visit.answer(answer)
        except OSError:
            is_sent = True
        if is_sent:
            self._end(visit)
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(visit.sock)
        self._selector.register(visit.sock, selectors.EVENT_WRITE, visit)

    def _end(self, visit: Visit) -> None:
        del self._visits[visit]
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(visit.sock)
        visit.end()

    def _end_oldest(self) -> None:
        if self._visits:
            self._end(next(iter(self._visits)))

    def _end_late(self) -> None:
        now = time.monotonic()
        for visit in [visit for visit in self._visits if visit.until <= now]:
            self._end(visit)

    def _wait_s(self) -> float | None:
        if not self._visits:
            return None
        return max(0.0, min(visit.until for visit in self._visits) - time.monotonic())

    # -- the rendering threads ---------------------------------------------------------------------------------------

    def _rendered(self, visits: list[Visit], answer: PageAnswer) -> None:
        self._done.extend((visit, answer) for visit in visits)
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._bell.send(b"!")


def _listen(address: tuple[str, int]) -> socket.socket:
    """Return a listening socket, without a host on both IP versions, so that the kubelet's probes reach it."""
    is_for_both = not address[0] and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_for_both or ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=is_for_both)
