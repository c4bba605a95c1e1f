"""The console in a cluster: one server for all viewers, each of whom sees what they may read.

In: `ServerSettings`. Out: a server that runs until SIGTERM. With TLS it may listen anywhere; without TLS only on the
loopback address, where `kubectl port-forward` reaches it.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware

from dra_driver.kube.credentials.loading import load_credentials, load_server
from dra_driver.web.guard import RequestGuard
from dra_driver.web.lookups.lookups import UsageSource
from dra_driver.web.pages import routes
from dra_driver.web.serving import WebServer, listening_socket, settings
from dra_driver.web.viewers.admissions import Admissions
from dra_driver.web.viewers.backends import Backends
from dra_driver.web.viewers.identity import TrustedProxy
from dra_driver.web.viewers.rights_resolvers import OwnRights, ReviewedRights, RightsResolver
from dra_driver.web.viewers.sessions import ViewerSessions
from dra_driver.web.viewers.sign_in import sign_in_routes
from dra_driver.web.viewers.viewer_authorizer import ViewerAuthorizer
from dra_driver.web.work_budget import WorkBudget, container_limit
from dra_driver.web.worker.worker_spawner import WorkerSpawner
from dra_driver.webhook.callers import Callers
from dra_driver.webhook.identity import CertificateFolder, ServingIdentity


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
