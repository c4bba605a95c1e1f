"""The console as a whole: the desk, the pages before it, and the server that a browser talks to.

In: how to load the board, an address. Out: a server that runs until it is interrupted, or the desk is gone.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from dra_driver.model.errors import DriverError, ExitCode, NodeError
from dra_driver.views.access import ClusterAccess
from dra_driver.web.api import ConsoleApi
from dra_driver.web.cluster_reader import ClusterReader
from dra_driver.web.desk_line import DeskLine
from dra_driver.web.events import Notices
from dra_driver.web.guard import ENTER, RequestGuard
from dra_driver.web.looking import Looking
from dra_driver.web.pages import entering, index, static
from dra_driver.web.session import ConsoleSession

if TYPE_CHECKING:
    from dra_driver.web.desk import Load

_BACKLOG = 64
_GONE = "the process that holds the fleet has ended"


class Console:
    """A console on the loopback address. Its address is known before it serves. Raises: NodeError for a taken port."""

    def __init__(self, port: int = 0) -> None:
        self._desk, self._notices = DeskLine(), Notices()
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost")}
        self._session = ConsoleSession(hosts, f"dra-console-{self.port}")
        self._access: ClusterAccess | None = None
        self._fault: DriverError | None = None
        self._server: uvicorn.Server

    @property
    def address(self) -> str:
        """The address to open, with the token that works once."""
        return f"http://127.0.0.1:{self.port}{ENTER}{self._session.token}"

    def start(self, load: Load, access: ClusterAccess | None = None) -> None:
        """Start the desk; with `access`, a cluster is read for it. Nothing else of this process may run yet."""
        self._desk.start(load)
        self._access = access

    def serve(self) -> None:
        """Serve until interrupted. Raises: whatever fault the desk met while it loaded, or that it is gone."""
        reader = ClusterReader(self._access, self._desk.send) if self._access else None
        looking = Looking(reader, self._notices) if reader else None
        self._server = _Server(_settings(self._app(reader)), self._desk, self._heard, self._notices, looking)
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass
        finally:
            if reader is not None:
                reader.stop()
            self._desk.close()
        if self._fault is not None:
            raise self._fault

    def _app(self, reader: ClusterReader | None) -> Starlette:
        api = ConsoleApi(self._desk, self._notices, reader)
        routes = [
            Route("/", index),
            Route(f"{ENTER}{{token}}", entering(self._session)),  # type: ignore[arg-type]
            Route("/static/{path:path}", static),
            Route("/api/v1/events", api.events),
            Route("/api/v1/{name:path}", api.question, methods=["GET", "POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(RequestGuard, session=self._session)])

    def _heard(self, message: tuple[Any, ...] | None) -> None:
        """Take a message of the desk; None says that its process has ended."""
        match message:
            case None:
                self._fault = self._fault or NodeError("desk-gone", _GONE, hint="the lines above may say why")
                self._server.should_exit = True
                self._notices.end()
            case ("fault", code, text, hint, status):
                self._fault = _LoadError(code, text, hint, status)
            case ("progress", noun, done, total):
                self._notices.post("progress", {"noun": noun, "done": done, "total": total})
            case ("ready", version):
                self._notices.post("state", "ready")
                self._notices.post("version", version)
            case ("version", version):
                self._notices.post("version", version)


class _LoadError(DriverError):
    """A fault that the desk met while it loaded, as it was told of it."""

    def __init__(self, code: str, message: str, hint: str, status: int) -> None:
        super().__init__(code, message, hint=hint)
        self.code, self.exit_code = code, ExitCode(status)


class _Server(uvicorn.Server):
    """A server that listens to the desk, and ends the streams of events when it ends."""

    def __init__(
        self, config: uvicorn.Config, desk: DeskLine, heard: Any, notices: Notices, looking: Looking | None
    ) -> None:
        super().__init__(config)
        self._desk, self._heard, self._notices, self._looking = desk, heard, notices, looking
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen to the desk and to browsers."""
        self._desk.listen(self._heard)
        if self._looking is not None:
            self._tasks.append(asyncio.create_task(self._looking.run()))
        await super().startup(sockets=sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first: the server waits for every answer that is under way."""
        self._notices.end()
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets=sockets)


def _settings(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=200,
        timeout_graceful_shutdown=2,
    )


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    except OSError as fault:
        hint = "give another --port, or none for one that is free"
        raise NodeError("port", f"127.0.0.1:{port} can't be listened on: {fault.strerror}", hint=hint) from fault
