"""Authorize requests to a console in a cluster: viewers who prove who they are get the backend for their rights.

In: the headers of a request. Out: a refusal, or the backend. Pages and modules contain nothing from the cluster, so
they are sent to anyone; every question needs a viewer.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Scope

from dra_driver.model.errors import DriverError
from dra_driver.web.backend import Backend
from dra_driver.web.guard import document
from dra_driver.web.session import is_same_origin
from dra_driver.web.session_authorizer import FOREIGN
from dra_driver.web.viewers.admissions import Admissions, TooFastError
from dra_driver.web.viewers.backends import Backends
from dra_driver.web.viewers.identity import PresentedIdentity, TrustedProxy, presented_identity
from dra_driver.web.viewers.sessions import ViewerSessions

HEALTH, SIGN_IN, SIGN_OUT = "/healthz", "/sign-in", "/sign-out"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_UNKNOWN_VIEWER = "the cluster does not know this viewer: the token may have expired"


class ViewerAuthorizer:
    """Admits viewers whom the cluster authenticates.

    `hosts` are the names under which pages are opened; those of the loopback address are always allowed.
    """

    def __init__(
        self,
        hosts: frozenset[str],
        sessions: ViewerSessions,
        proxy: TrustedProxy | None,
        admissions: Admissions,
        backends: Backends,
    ) -> None:
        self._hosts, self._sessions, self._proxy = hosts, sessions, proxy
        self._admissions, self._backends = admissions, backends

    async def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer that refuses a request; None if it is admitted."""
        path, host = str(scope["path"]), headers.get("host", "")
        if path == HEALTH:
            return None  # a kubelet's probe uses an IP address as the host, and the answer reveals nothing
        sent = (scope["method"], host, headers.get("origin", ""), headers.get("sec-fetch-site", ""))
        if not self._is_ours(host) or not (is_same_origin(*sent) or _is_visit(path, headers)):
            return PlainTextResponse(FOREIGN, 403)
        if path.startswith("/static/") or path in {SIGN_IN, SIGN_OUT}:
            return None
        one = self._presented(scope, headers)
        scope["is_signed_in"] = one is not None and "authorization" not in headers and not one.user
        if path.startswith("/api/"):
            return await self._with_backend(scope, headers, one)
        return None if one is not None else RedirectResponse(SIGN_IN, 303)

    def _presented(self, scope: Scope, headers: Headers) -> PresentedIdentity | None:
        names = scope.get("certificate_names", frozenset())
        return presented_identity(headers, names, self._proxy, self._sessions.identity)

    def _is_ours(self, host: str) -> bool:
        """Return whether a Host header names this console, with any port; any other may be DNS rebinding."""
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name in _LOOPBACK or host in self._hosts or name in self._hosts

    async def _with_backend(self, scope: Scope, headers: Headers, one: PresentedIdentity | None) -> Response | None:
        """Find the backend of a viewer and put it into the scope; return the answer that refuses if there is none."""
        if one is None:
            return document(401, "no-session", "this request has no token and no user", f"sign in at {SIGN_IN}")
        try:
            backend = await self._backend(one, peer_of(scope))
        except TooFastError:
            return too_fast()
        except DriverError as fault:
            return document(503, fault.code, f"your rights can't be found out now: {fault.message}", fault.hint)
        except _UnknownViewerError:
            return document(401, "no-session", _UNKNOWN_VIEWER, f"sign in at {SIGN_IN}")
        if backend is None:
            return document(503, "busy", "too many viewers with different rights use the console at the same time")

        async def may_continue() -> bool:
            try:
                return self._presented(scope, headers) == one and await self._backend(one, peer_of(scope)) is backend
            except (DriverError, TooFastError, _UnknownViewerError):
                return False

        scope["backend"], scope["may_continue"] = backend, may_continue
        return None

    async def _backend(self, one: PresentedIdentity, peer: str) -> Backend | None:
        admitted = await self._admissions.admit(one, peer)
        if admitted is None:
            self._sessions.end_all_of(one)
            raise _UnknownViewerError
        return self._backends.of(admitted)


class _UnknownViewerError(Exception):
    """A person whom the cluster does not know."""


def peer_of(scope: Scope) -> str:
    """Return the address from which a request came."""
    return str((scope.get("client") or ("",))[0])


def too_fast() -> Response:
    """Return the answer to a token that can't be shown to the API server yet."""
    answer = document(429, "busy", "many unknown tokens came at the same time", "try again in a few seconds")
    answer.headers["retry-after"] = "5"
    return answer


def _is_visit(path: str, headers: Headers) -> bool:
    """Return whether a person followed a link on another site to the first page, which contains no data."""
    return path in {"/", SIGN_IN} and headers.get("sec-fetch-mode") == "navigate" and not headers.get("origin")
