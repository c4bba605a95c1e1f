"""The door of a console on the loopback address: it is open to one browser, which has the cookie.

In: the headers of a request. Out: a refusal, or the console's one seat.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from dra_driver.web.guard import document
from dra_driver.web.seat import Seat
from dra_driver.web.session import ConsoleSession

ENTER = "/enter/"
FOREIGN = "This request was not made by a page of the console.\n"
_CLOSED = """This console is open only to the browser that was sent here by the address that the command printed.
That address works once. Start `dra-driver console` again to get a new one.
"""


class SessionDoor:
    """The door that a session opens."""

    def __init__(self, session: ConsoleSession, seat: Seat) -> None:
        self._session, self._seat = session, seat

    async def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the reason for refusing a request; None if it is admitted."""
        path = str(scope["path"])
        site = "" if path.startswith(ENTER) else headers.get("sec-fetch-site", "")
        if not self._session.is_from_here(scope["method"], headers.get("host", ""), headers.get("origin", ""), site):
            return PlainTextResponse(FOREIGN, 403)
        scope["seat"] = self._seat
        if path.startswith(ENTER) or self._session.is_known(headers.get("cookie", "")):
            return None
        if path.startswith("/api/"):
            return document(401, "no-session", "this browser has no session", "start dra-driver console again")
        return PlainTextResponse(_CLOSED, 401)
