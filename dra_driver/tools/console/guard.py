"""The guard in front of all pages: it refuses requests, limits their size, and sets the headers of answers.

In: ASGI requests. Out: requests that may be answered. A request that the authorizer refuses, or that is too large, ends
here with a text or a document that says why. Only some large bodies are read and answered at once.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dra_driver.tools.console.backend import Backend
from dra_driver.tools.console.events import BackendPlaces, NoPlaceError, SharedPlaces
from dra_driver.tools.console.responses import refusal

MAX_BODY = 2 << 20  # bytes of a request
MAX_WITHOUT_VIEWER = 20 << 10  # bytes of a request of anybody: a token, to sign in
_METHODS = frozenset({"GET", "HEAD", "POST"})


class LargeBodies:
    """The places of one server. Call it in the event loop."""

    def __init__(self) -> None:
        self._places = SharedPlaces(2, 1, 16)
        self._of_backends: WeakKeyDictionary[Backend, BackendPlaces] = WeakKeyDictionary()

    def place(self, backend: Backend) -> AbstractAsyncContextManager[None]:
        """Return a context that waits for a place, and holds it. Entering raises: NoPlaceError."""
        if backend not in self._of_backends:
            self._of_backends[backend] = self._places.of_backend()
        return self._of_backends[backend].place()


class Authorizer(Protocol):
    """Decides which requests are admitted, and to which backend they go."""

    async def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer that refuses a request; None if it is admitted, and then its backend is in its scope."""


def _policy() -> str:
    """Return the Content-Security-Policy of a page: it may load the console's modules, styles and answers only."""
    rules = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


_HEADERS = {
    "content-security-policy": _policy(),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class RequestGuard:
    """ASGI middleware around all pages."""

    def __init__(self, app: ASGIApp, authorizer: Authorizer) -> None:
        self._app, self._authorizer, self._large = app, authorizer, LargeBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = await self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send_with_headers)
            return
        backend = scope.get("backend")
        if backend is None or _is_small(scope["method"], Headers(scope=scope)):
            await self._app(scope, _bounded(receive, MAX_WITHOUT_VIEWER), send_with_headers)
            return
        try:
            async with self._large.place(backend):
                await self._app(scope, _bounded(receive, MAX_BODY), send_with_headers)
        except NoPlaceError:
            busy = document(503, "busy", "other large requests are being answered", "try again in a moment")
            await busy(scope, receive, send_with_headers)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("The console answers GET, HEAD and POST only.\n", 405)
        if _length(headers) > MAX_BODY:
            return document(413, "input.too-large", f"the request is longer than {MAX_BODY >> 20} MiB")
        refused = await self._authorizer.refusal(scope, headers)
        if refused is None and "backend" not in scope and _length(headers) > MAX_WITHOUT_VIEWER:
            return document(413, "input.too-large", f"the request is longer than {MAX_WITHOUT_VIEWER >> 10} KiB")
        return refused


def document(status: int, code: str, message: str, hint: str = "") -> Response:
    """Return an answer with the document of an error."""
    found = refusal(status, code, message, hint)
    return Response(found.body, found.status, media_type="application/json")


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else MAX_BODY + 1


def _is_small(method: str, headers: Headers) -> bool:
    """Return whether a body is as small as one that anybody may send; without a length, it may be large."""
    if method == "POST" and "content-length" not in headers:
        return False
    return _length(headers) <= MAX_WITHOUT_VIEWER


def _bounded(receive: Receive, maximum: int) -> Receive:
    """Return a `receive` that cuts off a body which exceeds the limit, whatever its headers say."""
    seen = 0

    async def receive_some() -> Message:
        nonlocal seen
        message: dict[str, Any] = dict(await receive())
        seen += len(message.get("body", b""))
        return message if seen <= maximum else {"type": "http.disconnect"}

    return receive_some


# The session of a console on the loopback address: a one-time token is exchanged for a cookie that requests need.

_BYTES = 32
_READING = frozenset({"GET", "HEAD"})


def _random() -> str:
    return secrets.token_urlsafe(_BYTES)


@dataclass(slots=True)
class ConsoleSession:
    """The one-time token, and the session made with it. `hosts` are the values of Host under which pages are served."""

    hosts: Collection[str]
    cookie_name: str
    token: str = field(default_factory=_random)
    _secret: str = field(default_factory=_random)

    def exchange(self, token: str) -> str | None:
        """Return the value of the cookie in exchange for the token, which becomes invalid; None for a wrong token."""
        if not self.token or not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = ""
        return self._secret

    def is_known(self, cookies: str) -> bool:
        """Return whether the Cookie header of a request contains the session's cookie."""
        try:
            found = SimpleCookie(cookies).get(self.cookie_name)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._secret.encode())

    def is_from_here(self, method: str, host: str, origin: str, site: str) -> bool:
        """Return whether a request was made by a page of this console, or by a person who opened its address."""
        # Another host name that leads to this address is an attack (DNS rebinding).
        return host in self.hosts and is_same_origin(method, host, origin, site)


def is_same_origin(method: str, host: str, origin: str, site: str) -> bool:
    """Return whether a request to one of the console's hosts was made by a page of it, or by a person."""
    if origin and origin not in {f"http://{host}", f"https://{host}"}:
        return False
    if method in _READING:
        return site in {"", "same-origin", "none"}
    return bool(origin) and site in {"", "same-origin"}


# Authorize requests to a console on the loopback address: only the browser that has the cookie is admitted.

ENTER = "/enter/"
FOREIGN = "This request was not made by a page of the console.\n"
_CLOSED = """This console is open only to the browser that was sent here by the address that the command printed.
That address works once. Start `dra-driver console` again to get a new one.
"""


class SessionAuthorizer:
    """Admits the requests that carry the session's cookie."""

    def __init__(self, session: ConsoleSession, backend: Backend) -> None:
        self._session, self._backend = session, backend

    async def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer that refuses a request; None if it is admitted."""
        path = str(scope["path"])
        site = "" if path.startswith(ENTER) else headers.get("sec-fetch-site", "")
        if not self._session.is_from_here(scope["method"], headers.get("host", ""), headers.get("origin", ""), site):
            return PlainTextResponse(FOREIGN, 403)
        scope["backend"] = self._backend
        if path.startswith(ENTER) or self._session.is_known(headers.get("cookie", "")):
            return None
        if path.startswith("/api/"):
            return document(401, "no-session", "this browser has no session", "start dra-driver console again")
        return PlainTextResponse(_CLOSED, 401)
