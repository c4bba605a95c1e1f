"""The console as a whole: the worker process, the pages in front of it, and the server that a browser talks to.

In: a function that loads the board, and a port. Out: a server that runs until it is interrupted or the worker is gone.
The pages are files of `static`; none of them contains anything from a cluster.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dra_driver import __version__
from dra_driver.base.errors import NodeError
from dra_driver.tools.console.backend import Backend
from dra_driver.tools.console.cluster_reader import WorkBudget
from dra_driver.tools.console.guard import ENTER, ConsoleSession, RequestGuard, SessionAuthorizer
from dra_driver.tools.console.lookups import Commands, UsageSource, ViewerLookups
from dra_driver.tools.console.worker_client import WorkerClient
from dra_driver.tools.http_server import ConnectionLimits, HttpServer, configuration
from dra_driver.tools.world.access import ClusterAccess

if TYPE_CHECKING:
    from dra_driver.tools.console.worker import Load


# The server that browsers talk to: its limits, and the tasks that run beside it.

LIMITS = ConnectionLimits(
    connections=256,
    of_peer=192,  # all viewers behind one proxy, or behind kubectl port-forward, are one peer
    handshake=10.0,
    first=10.0,
    head=10.0,
    body=20.0,
    answer=30.0,
    following=30.0,
)
_BACKLOG = 64


class WebServer(HttpServer):
    """A server that calls `begin` in its loop before it listens, and `end` before it waits for unfinished answers."""

    def __init__(self, config: uvicorn.Config, begin: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__(config, LIMITS)
        self._begin, self._end = begin, end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen to browsers."""
        self._begin()
        await super().startup(sockets=sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the server."""
        self._end()
        await super().shutdown(sockets=sockets)


def settings(app: ASGIApp, context: ssl.SSLContext | None = None) -> uvicorn.Config:
    """Return the configuration of a server of these pages; with a context, it speaks TLS."""
    return configuration(
        app,
        context,
        log_level="warning",
        log_config=None if context is not None else uvicorn.config.LOGGING_CONFIG,
        limit_concurrency=2 * LIMITS.connections,  # requests; some outlive their connection for a moment
    )


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises: NodeError for an address that is in use or belongs to another machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as fault:
        hint = "choose another port, or leave the option out to get one that is free"
        raise NodeError("port", f"cannot listen on {host}:{port}: {fault.strerror}", hint=hint) from fault


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


_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


@cache
def _files() -> dict[str, Traversable]:
    """Return every file that may be requested, by its path; no other path exists."""
    found: dict[str, Traversable] = {}

    def add(folder: Traversable, prefix: str) -> None:
        for one in folder.iterdir():
            if one.is_dir():
                add(one, f"{prefix}{one.name}/")
            elif any(one.name.endswith(ending) for ending in _TYPES):
                found[f"{prefix}{one.name}"] = one

    add(files("dra_driver.tools.console") / "static", "")
    return found


@cache
def _content(path: str) -> bytes:
    return _files()[path].read_bytes()


async def index(request: Request) -> Response:
    """Return the HTML document of all pages."""
    return document_of("index.html", request)


def document_of(name: str, request: Request) -> Response:
    """Return an HTML document of `static`, with the version and whether the viewer has signed in."""
    signed_in = "yes" if request.scope.get("is_signed_in") else "no"
    text = _content(name).decode().replace("{version}", __version__).replace("{signed_in}", signed_in)
    return Response(text, media_type="text/html")


async def static(request: Request) -> Response:
    """Return a module, a style or a picture."""
    path = request.path_params["path"]
    if path not in _files():
        return PlainTextResponse("There is no such file.\n", 404)
    ending = path[path.rindex(".") :]
    headers = {"cache-control": "private, max-age=3600"} if path.startswith("vendor/") else {}
    return Response(_content(path), media_type=_TYPES[ending], headers=headers)


def routes() -> list[Route]:
    """Return the routes that every console has. The guard has already put the backend into the scope of a question."""

    async def question(request: Request) -> Response:
        backend: Backend = request.scope["backend"]
        return await backend.api.question(request)

    async def events(request: Request) -> Response:
        backend: Backend = request.scope["backend"]
        return await backend.api.events(request)

    return [
        Route("/", index),
        Route("/static/{path:path}", static),
        Route("/api/v1/events", events),
        Route("/api/v1/{name:path}", question, methods=["GET", "POST"]),
    ]


def entry_route(prefix: str, session: ConsoleSession) -> Route:
    """Return the page that exchanges the token of the opened address for a cookie."""

    async def enter(request: Request) -> Response:
        cookie = session.exchange(request.path_params["token"])
        if cookie is None:
            text = "This address has been used already, or is incomplete.\nStart `dra-driver console` again.\n"
            return PlainTextResponse(text, 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(session.cookie_name, cookie, httponly=True, samesite="strict", path="/")
        return answer

    return Route(f"{prefix}{{token}}", enter)
