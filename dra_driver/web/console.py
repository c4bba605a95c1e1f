"""The console as a whole: the worker process, the pages in front of it, and the server that a browser talks to.

In: a function that loads the board, and a port. Out: a server that runs until it is interrupted or the worker is gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware

from dra_driver.views.access import ClusterAccess
from dra_driver.web.backend import Backend
from dra_driver.web.guard import RequestGuard
from dra_driver.web.lookups.commands import Commands
from dra_driver.web.lookups.lookups import UsageSource, ViewerLookups
from dra_driver.web.pages import entry_route, routes
from dra_driver.web.serving import WebServer, listening_socket, settings
from dra_driver.web.session import ConsoleSession
from dra_driver.web.session_authorizer import ENTER, SessionAuthorizer
from dra_driver.web.work_budget import WorkBudget
from dra_driver.web.worker.client import WorkerClient

if TYPE_CHECKING:
    from dra_driver.web.worker.process import Load


class Console:
    """A console on the loopback address. Its address is known before it serves. Raises: NodeError for a taken port."""

    def __init__(self, port: int = 0) -> None:
        self._budget = WorkBudget()
        self._worker = WorkerClient(self._budget)
        self._socket = listening_socket("127.0.0.1", port)
        self.port: int = self._socket.getsockname()[1]
        hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost")}
        self._session = ConsoleSession(hosts, f"dra-console-{self.port}")
        self._access: ClusterAccess | None = None
        self._usage = UsageSource()
        self._server: WebServer
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address to open, with the token that works once."""
        return f"http://127.0.0.1:{self.port}{ENTER}{self._session.token}"

    def start(self, load: Load, access: ClusterAccess | None = None, usage: UsageSource | None = None) -> None:
        """Start the worker; with `access`, a cluster is read for it.

        No other thread of this process may be running yet.
        """
        self._worker.start(load)
        self._access, self._usage = access, usage or UsageSource()

    def serve(self) -> None:
        """Serve until interrupted.

        Raises: DriverError if the worker could not load the board; NodeError if the worker is gone.
        """
        backend = Backend(self._worker, self._access, self._lookups(), self._stop)
        guard = Middleware(RequestGuard, authorizer=SessionAuthorizer(self._session, backend))
        app = Starlette(routes=[*routes(), entry_route(ENTER, self._session)], middleware=[guard])
        self._server = WebServer(settings(app), lambda: self._begin(backend), lambda: self._end(backend))
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass
        finally:
            backend.close()
        if backend.fault is not None:
            raise backend.fault

    def _lookups(self) -> ViewerLookups:
        access = self._access
        named = {"--kubeconfig": access.kubeconfig, "--context": access.context} if access is not None else {}
        words = tuple(word for name, value in named.items() if value for word in (name, value))
        return ViewerLookups(self._usage, Commands(self._budget), words)

    def _begin(self, backend: Backend) -> None:
        self._worker.listen(backend.on_message)
        if backend.reading is not None:
            self._task = asyncio.create_task(backend.reading.run())

    def _end(self, backend: Backend) -> None:
        """End the streams first, because the server waits for every answer that is under way."""
        backend.notices.end()
        if self._task is not None:
            self._task.cancel()

    def _stop(self) -> None:
        self._server.ask_to_end()
