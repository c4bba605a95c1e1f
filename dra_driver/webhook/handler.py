"""The application: it reads reviews, has them judged by threads, and answers them.

In: requests of anyone who can reach the port. Out: answers. The size of heads and bodies is checked before they are
read. The work ends when the caller has gone. The event loop never judges, so that probes are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.probes import QUICK_PAGES, PageResponse
from dra_driver.webhook.callers import Callers
from dra_driver.webhook.decoding import TooManyValuesError, decode
from dra_driver.webhook.load_limits import MAX_REVIEWS, LoadLimits, OverloadedError
from dra_driver.webhook.review_deadline import CallerGoneError, ReviewDeadline

log = logging.getLogger(__name__)

MAX_BYTES = 3 << 20  # the API server's own limit. Source: k8s.io/apiserver, MaxRequestBodyBytes
MAX_HEAD_BYTES = 16 * 1024
_ERROR_CHARACTERS = 200
_JSON = "application/json"
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)

Reviewer = Callable[[Any, ReviewDeadline], Wire]


class ReviewApplication:
    """The ASGI application.

    `reviewers` holds the functions by path; `unread` holds those that answer, given its UID, a review with too many
    values to be decoded. `answered` is called with the path and the outcome of each request.
    """

    def __init__(
        self,
        reviewers: Mapping[str, Reviewer],
        unread: Mapping[str, Callable[[str], Wire]],
        pages: Mapping[str, Callable[[], PageResponse]],
        answered: Callable[[str, str], None],
        callers: Callers,
    ) -> None:
        self._reviewers, self._unread, self._answered, self._callers = reviewers, unread, answered, callers
        self._limits = LoadLimits(tuple(reviewers))
        self._threads = ThreadPoolExecutor(MAX_REVIEWS * len(reviewers) or 1, thread_name_prefix="review")
        self._pages = pages
        routes = [Route(path, self._review, methods=["POST"]) for path in reviewers]
        routes += [Route(path, self._page, methods=["GET"]) for path in (*QUICK_PAGES, *pages)]
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. uvicorn measures only heads that come in pieces, so the others are measured here."""
        head = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in scope["headers"])
        if head > MAX_HEAD_BYTES:
            refusal = _refusal(431, f"the head of a request has at most {MAX_HEAD_BYTES} bytes")
            await refusal(scope, receive, send)
        else:
            await self._router(scope, receive, send)

    def close(self) -> None:
        """End the threads, once their reviews have ended."""
        self._threads.shutdown(wait=False)

    async def _page(self, request: Request) -> Response:
        path = request.scope["path"]
        page = QUICK_PAGES.get(path) or self._pages[path]()
        return Response(page.body, page.status, media_type=page.content_type)

    async def _review(self, request: Request) -> Response:
        path = request.scope["path"]
        try:
            outcome, response = await self._outcome_of(path, request)
        except OverloadedError:
            outcome, response = "no-room", _refusal(503, "too many reviews at a time")
        except ClientDisconnect:
            outcome, response = "bad-review", Response(status_code=400)  # which nobody reads
        except CallerGoneError:
            outcome, response = "gone", Response(status_code=400)
        self._answered(path, outcome)
        return response

    async def _outcome_of(self, path: str, request: Request) -> tuple[str, Response]:
        """Return outcome and answer. Raises: OverloadedError, ClientDisconnect, CallerGoneError."""
        if why := self._callers.refusal(request.state.client_certificate):
            return "stranger", _refusal(403, why)
        if refusal := _refusal_to_read(request.headers):
            return "bad-review", refusal
        length = int(request.headers["content-length"])
        async with self._limits.for_body(length):
            body = await request.body()
            async with _end_of_caller(request) as is_gone:
                deadline = ReviewDeadline(is_gone=is_gone)
                async with self._limits.for_review(path, length):
                    loop = asyncio.get_running_loop()
                    return await loop.run_in_executor(self._threads, self._judge, path, body, deadline)

    def _judge(self, path: str, body: bytes, deadline: ReviewDeadline) -> tuple[str, Response]:
        """Return outcome and answer. Raises: CallerGoneError."""
        try:
            deadline.check_caller()
            reply = self._reviewed(path, body, deadline)
        except InputError as error:
            text = f"{error.message[:_ERROR_CHARACTERS]}\n".encode("utf-8", "replace")
            return "bad-review", PlainTextResponse(text, 400)
        except CallerGoneError:
            raise
        except Exception:
            log.exception("review failed", extra=fields(path=path))
            return "bug", PlainTextResponse("internal error\n", 500)
        return _outcome(reply), Response(_ENCODER.encode(reply).encode("utf-8", "replace"), media_type=_JSON)

    def _reviewed(self, path: str, body: bytes, deadline: ReviewDeadline) -> Wire:
        try:
            return self._reviewers[path](decode(body), deadline)
        except TooManyValuesError as error:
            unread = self._unread.get(path)
            if unread is None or not error.uid:
                raise
            return unread(error.uid)


@asynccontextmanager
async def _end_of_caller(request: Request) -> AsyncIterator[Callable[[], bool]]:
    """Return a function that tells a thread whether the caller has closed the connection, or the server gave up."""
    is_over = threading.Event()

    async def listen() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        is_over.set()

    listening = asyncio.create_task(listen())
    try:
        yield is_over.is_set
    finally:
        is_over.set()
        listening.cancel()


def _refusal_to_read(headers: Headers) -> Response | None:
    """Return the answer to a request whose body must not be read; None if it may be. uvicorn has checked the length."""
    length = headers.get("content-length")
    if length is None or "transfer-encoding" in headers:
        return _refusal(411, "Content-Length is needed")
    if int(length) > MAX_BYTES:
        return _refusal(413, f"a review has at most {MAX_BYTES} bytes")
    if headers.get("content-type", _JSON).partition(";")[0].strip().lower() != _JSON:
        return _refusal(415, f"{_JSON} is expected")
    return None


def _refusal(status: int, why: str) -> Response:
    """Return an answer to a request whose body is not read, so the connection ends."""
    return PlainTextResponse(f"{why}\n", status, {"Connection": "close"})


def _outcome(reply: Wire) -> str:
    response = reply["response"]
    if not response["allowed"]:
        return "refused"
    return "warned" if response.get("warnings") else "allowed"
