"""`/api/v1`: what pages ask, as documents of `--output json`, and what changed, as events.

In: requests that the guard let through. Out: documents. Questions go to the desk.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from dra_driver.web.answers import DeskAnswer, refusal
from dra_driver.web.desk_line import DeskLine
from dra_driver.web.events import MOST_STREAMS, Notices
from dra_driver.web.questions import KINDS

_ASKED_BY_ADDRESS = frozenset({"summary", "fleet", "device"})  # all others come as a JSON body


class ConsoleApi:
    """The handlers."""

    def __init__(self, desk: DeskLine, notices: Notices) -> None:
        self._desk, self._notices = desk, notices

    async def question(self, request: Request) -> Response:
        """DeskAnswer a question: with parameters in the address, or with a JSON object."""
        name = request.path_params["name"]
        if name not in KINDS:
            return _response(refusal(404, "no-question", f"there is no /api/v1/{name[:80]}"))
        given: Any = dict(request.query_params)
        if request.method == "POST":
            try:
                given = json.loads(await request.body())
            except (ValueError, RecursionError):
                given = None
            except ClientDisconnect:
                return _response(refusal(413, "input.too-large", "the request is too long"))
        elif name not in _ASKED_BY_ADDRESS:
            return _response(refusal(405, "method", f"/api/v1/{name} wants POST"))
        if not isinstance(given, dict):
            return _response(refusal(400, "question", "the body is not a JSON object"))
        if self._notices.latest("state") != "ready":
            return _response(refusal(503, "loading", "the fleet is being read"))
        return _response(await self._desk.ask({**given, "ask": name}))

    async def events(self, _request: Request) -> Response:
        """Stream what changes."""
        if self._notices.streams >= MOST_STREAMS:
            return _response(refusal(503, "busy", f"{MOST_STREAMS} pages are open already"))
        return StreamingResponse(self._notices.stream(), media_type="text/event-stream")


def _response(found: DeskAnswer) -> Response:
    return Response(found.body, found.status, media_type="application/json")
