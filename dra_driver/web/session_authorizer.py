"""Authorize requests to a console on the loopback address: only the browser that has the cookie is admitted.

In: the headers of a request. Out: a refusal, or the console's one backend.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from dra_driver.web.backend import Backend
from dra_driver.web.guard import document
from dra_driver.web.session import ConsoleSession

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
