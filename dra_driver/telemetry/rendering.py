"""Rendering: pages that take time to make, each rendered in a thread of its own, once for all clients that wait.

In: a page, and the connections that wait for it. Out: the page's answer together with these connections. A page is
rendered at most a few times a second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dra_driver.telemetry.part_thread import PartThread
from dra_driver.telemetry.status_connection import PageResponse, StatusConnection

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
_RENDER_SECONDS = 0.05  # the least time between two renderings of the same page

Page = Callable[[], PageResponse]


class Renderer:
    """Renders one page for all clients that wait; a request that comes during a rendering waits for the next one."""

    def __init__(self, page: Page, done: Callable[[list[StatusConnection], PageResponse], None]) -> None:
        self._page, self._done = page, done
        self._changed = threading.Condition()
        self._waiting: list[StatusConnection] = []
        self._is_stopping = False
        self._thread = PartThread("status-page", self._run)

    def start(self) -> None:
        """Start the thread, which does nothing until a page is requested. Raises: NodeError("node.thread")."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread without waiting for a rendering in progress."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.release()

    def ask(self, connection: StatusConnection) -> None:
        """Request the page for this connection."""
        with self._changed:
            self._waiting.append(connection)
            del self._waiting[:-MAX_CONNECTIONS]
            self._changed.notify_all()

    def _run(self, thread: PartThread) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_stopping)
                if self._is_stopping:
                    return
                connections, self._waiting = self._waiting, []
            try:
                with thread.turn():
                    answer = self._page()
            except Exception:
                log.exception("status page failed")
                answer = PageResponse(500, b"internal error\n")
            self._done(connections, answer)
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping, _RENDER_SECONDS)
