"""Signing in: a viewer's own token begins a session, whose random name is a cookie that no script can read.

In: a token that a viewer has entered. Out: the cookie, if the cluster accepts the token. The token is kept in memory
only, and never sent back to a browser: browsers send a cookie of localhost to the servers on all of its ports.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from dra_driver.model.errors import DriverError
from dra_driver.web.guard import document
from dra_driver.web.pages import document_of
from dra_driver.web.viewers.admissions import Admissions, TooFastError
from dra_driver.web.viewers.identity import MAX_TOKEN, PresentedIdentity, is_token
from dra_driver.web.viewers.sessions import ViewerSessions
from dra_driver.web.viewers.viewer_authorizer import HEALTH, SIGN_IN, SIGN_OUT, peer_of, too_fast


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
