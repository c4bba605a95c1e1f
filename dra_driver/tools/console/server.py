"""The console in a cluster: one server for all viewers, each of whom sees what they may read.

In: `ServerSettings`. Out: a server that runs until SIGTERM. With TLS it may listen anywhere; without TLS only on the
loopback address, where `kubectl port-forward` reaches it. A viewer's own token begins a session, whose random name is a
cookie that no script can read. The token is kept in memory only, and never sent back to a browser: browsers send a
cookie of localhost to the servers on all of its ports.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from dra_driver.base.errors import DriverError
from dra_driver.kube.credentials import load_credentials, load_server
from dra_driver.tools.console.cluster_reader import WorkBudget, container_limit
from dra_driver.tools.console.console import WebServer, document_of, listening_socket, routes, settings
from dra_driver.tools.console.guard import RequestGuard, document
from dra_driver.tools.console.lookups import UsageSource
from dra_driver.tools.console.sign_in import (
    MAX_TOKEN,
    OwnRights,
    PresentedIdentity,
    ReviewedRights,
    RightsResolver,
    TrustedProxy,
    ViewerSessions,
    is_token,
)
from dra_driver.tools.console.viewers import (
    HEALTH,
    SIGN_IN,
    SIGN_OUT,
    Admissions,
    Backends,
    TooFastError,
    ViewerAuthorizer,
    peer_of,
    too_fast,
)
from dra_driver.tools.console.worker_client import WorkerSpawner
from dra_driver.tools.webhook.certificates import CertificateFolder, ServingIdentity
from dra_driver.tools.webhook.fleet import Callers


def sign_in_routes(sessions: ViewerSessions, is_secure: bool, admissions: Admissions) -> list[Route]:
    """Return the routes. If `is_secure`, browsers send the cookie over TLS only."""
    handlers = _SignIn(sessions, is_secure, admissions)
    return [
        Route(HEALTH, _healthy),
        Route(SIGN_IN, _page, methods=["GET"]),
        Route(SIGN_IN, handlers.sign_in, methods=["POST"]),
        Route(SIGN_OUT, handlers.sign_out, methods=["POST"]),
    ]


@dataclass(frozen=True, slots=True)
class _SignIn:
    """The handlers that begin and end sessions."""

    sessions: ViewerSessions
    is_secure: bool
    admissions: Admissions

    async def sign_in(self, request: Request) -> Response:
        token = await _token_of(request)
        if not is_token(token):
            text = f"this is no token of at most {MAX_TOKEN:,} characters"
            return document(422, "input.token", text, "kubectl create token NAME prints one")
        try:
            admitted = await self.admissions.admit(identity := PresentedIdentity(token), peer_of(request.scope))
        except TooFastError:
            return too_fast()
        except DriverError as fault:
            return document(503, fault.code, fault.message, fault.hint)
        if admitted is None:
            return document(401, "no-session", "the cluster does not accept this token", "it may have expired")
        self.sessions.end(request.headers.get("cookie", ""))
        cookie, name = self.sessions.cookie, self.sessions.begin(identity, admitted.user)
        answer = Response(status_code=204)
        answer.set_cookie(cookie, name, httponly=True, secure=self.is_secure, samesite="strict", path="/")
        return answer

    async def sign_out(self, request: Request) -> Response:
        self.sessions.end(request.headers.get("cookie", ""))
        answer = Response(status_code=204)
        cookie = self.sessions.cookie
        answer.delete_cookie(cookie, httponly=True, secure=self.is_secure, samesite="strict", path="/")
        return answer


async def _page(request: Request) -> Response:
    return document_of("sign-in.html", request)


async def _healthy(_request: Request) -> Response:
    return Response(b"ok\n", media_type="text/plain")


async def _token_of(request: Request) -> str:
    """Return the token in a body; "" for a body without one."""
    try:
        given = json.loads(await request.body())
    except (ValueError, RecursionError, ClientDisconnect):
        return ""
    token = given.get("token") if isinstance(given, dict) else None
    return token.strip() if isinstance(token, str) else ""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The values of the flags.

    `hosts` are the names under which pages are opened. With `reviews`, viewers' rights are found out by reviews of
    access; without, by using their tokens. `viewers` is the largest number of backends at the same time.
    """

    address: tuple[str, int]
    hosts: frozenset[str]
    kubeconfig: str | None = None
    tls_dir: Path | None = None
    reviews: bool = False
    namespaces: tuple[str, ...] = ()
    proxy: TrustedProxy | None = None
    proxy_authorities: Path | None = None
    viewers: int = 16
    usage: UsageSource = field(default_factory=UsageSource)


def serve(given: ServerSettings) -> None:
    """Serve until SIGTERM. Raises: DriverError for a certificate, credentials or an address that can't be used."""
    resolver = _resolver(given)
    spawner = WorkerSpawner()
    sock = listening_socket(*given.address)
    spawner.start()  # started before the first thread
    identity = _identity(given)
    server = _server(given, resolver, spawner, identity.context if identity else None)
    try:
        if identity is not None:
            identity.start()
        server.run(sockets=[sock])
    finally:
        if identity is not None:
            identity.stop()
        spawner.close()


def _resolver(given: ServerSettings) -> RightsResolver:
    if given.reviews:
        return ReviewedRights(load_credentials(given.kubeconfig), given.namespaces)
    return OwnRights(load_server(given.kubeconfig), given.namespaces)


def _identity(given: ServerSettings) -> ServingIdentity | None:
    """Return the server's certificate, which follows its files; None without TLS. Raises: NodeError."""
    if given.tls_dir is None:
        return None
    identity = ServingIdentity(CertificateFolder(given.tls_dir))
    identity.reload()
    if given.proxy is not None:
        Callers(given.proxy_authorities).prepare(identity.context)
    return identity


def _server(
    given: ServerSettings, resolver: RightsResolver, spawner: WorkerSpawner, context: ssl.SSLContext | None
) -> WebServer:
    budget = WorkBudget.within(container_limit())
    cookie = "__Host-dra-console" if context else "dra-console"
    backends, tasks = Backends(spawner, given.usage, given.viewers, budget), set[asyncio.Task[None]]()
    admissions, sessions = Admissions(resolver), ViewerSessions(cookie)
    authorizer = ViewerAuthorizer(given.hosts, sessions, given.proxy, admissions, backends)
    pages = [*routes(), *sign_in_routes(sessions, bool(context), admissions)]
    app = Starlette(routes=pages, middleware=[Middleware(RequestGuard, authorizer=authorizer)])

    def begin() -> None:
        tasks.add(asyncio.create_task(backends.end_unused()))

    def end() -> None:
        for task in tasks:
            task.cancel()
        admissions.close()
        backends.close()

    return WebServer(settings(app, context), begin, end)
