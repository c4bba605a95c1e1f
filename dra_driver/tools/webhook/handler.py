"""The application: it reads reviews, has them judged by threads, and answers them.

In: requests of anyone who can reach the port. Out: answers. The size of heads and bodies is checked before they are
read. The work ends when the caller has gone. The event loop never judges, so that probes are answered meanwhile.

A small body needs no permission to be read, since the number of connections is limited. A large one counts with all its
bytes, and only one is decoded at a time, because decoded values take ten times as much memory. A part that is nested
too deeply becomes a text, which no config is. Nothing that an API server passes on is refused for how it is written:
numbers of any length, halves of surrogate pairs, duplicate names, NaN.
Source: Kubernetes, sigs.k8s.io/json (10,000 levels; the last of equal names counts); RawExtension keeps bytes as they
are.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from dra_driver.base.errors import InputError
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.telemetry.status_server import QUICK_PAGES, PageResponse
from dra_driver.base.wire import Wire
from dra_driver.tools.webhook.fleet import Callers
from dra_driver.tools.webhook.review import CallerGoneError, ReviewDeadline

SMALL_BYTES = 16 * 1024
MAX_LARGE_BYTES = 8 << 20  # of all large bodies together
MAX_REVIEWS = 8  # at a time, for each path
_WAIT_SECONDS = 3.0  # until there is room for a large body, or for one more review
MAX_VALUES = 200_000  # a valid claim has some tens of thousands
MAX_LEVELS = 100
TOO_DEEP = "(nested too deeply)"
_MAX_DIGITS = 4096  # Python refuses to convert longer integers; quantities end there too
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)
_UID = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([0-9A-Za-z-]{1,256})"')
_UID_WITHIN = 2048  # in bytes; API servers write the UID at the beginning
_OPENING, _CLOSING = b"[{", b"]}"
log = logging.getLogger(__name__)

MAX_BYTES = 3 << 20  # the API server's own limit. Source: k8s.io/apiserver, MaxRequestBodyBytes
MAX_HEAD_BYTES = 16 * 1024
_ERROR_CHARACTERS = 200
_JSON = "application/json"
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)

Reviewer = Callable[[Any, ReviewDeadline], Wire]


class OverloadedError(Exception):
    """A limit was reached, and no room was made in time."""


class LoadLimits:
    """The memory limits of one server. Only its event loop may ask."""

    def __init__(
        self, paths: tuple[str, ...], *, max_bytes: int = MAX_LARGE_BYTES, wait_s: float = _WAIT_SECONDS
    ) -> None:
        self._left, self._wait_s = max_bytes, wait_s
        self._changed = asyncio.Condition()
        self._reviews = {path: asyncio.Semaphore(MAX_REVIEWS) for path in paths}
        self._large = {path: asyncio.Semaphore(1) for path in paths}

    @asynccontextmanager
    async def for_body(self, length: int) -> AsyncIterator[None]:
        """Reserve memory for a body while it is read and judged. Entering raises: OverloadedError."""
        counted = length if length > SMALL_BYTES else 0
        async with self._changed, self._in_time():
            await self._changed.wait_for(lambda: not counted or self._left >= counted)
            self._left -= counted
        try:
            yield
        finally:
            async with self._changed:
                self._left += counted
                self._changed.notify_all()

    @asynccontextmanager
    async def for_review(self, path: str, length: int) -> AsyncIterator[None]:
        """Wait until a review of this path may be decoded. Entering raises: OverloadedError."""
        turns = [self._reviews[path]] if length <= SMALL_BYTES else [self._large[path], self._reviews[path]]
        async with AsyncExitStack() as held:
            async with self._in_time():
                for turn in turns:
                    await held.enter_async_context(turn)
            yield

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._wait_s):
                yield
        except TimeoutError as error:
            raise OverloadedError from error


class TooManyValuesError(InputError):
    """The review holds more values than any valid object. `uid` is the review's own, if it could be found."""

    def __init__(self, uid: str) -> None:
        super().__init__("review", f"the review holds more than {MAX_VALUES} values")
        self.uid = uid


def decode(body: bytes) -> Any:
    """Decode a body. Raises: InputError("input.review"); TooManyValuesError."""
    if _marks(body, b"[", b"{") > MAX_LEVELS or _marks(body, b",", b"[", b"{") > MAX_VALUES:
        body = _flattened(body)
    try:
        return _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise InputError("review", f"not an AdmissionReview: {error}") from error


def _marks(body: bytes, *marks: bytes) -> int:
    """Count some characters wherever they occur, in texts too: that is fast, and never an underestimate."""
    return sum(map(body.count, marks))


def _flattened(body: bytes) -> bytes:
    """Count the actual values, and cut out what is nested too deeply."""
    pieces: list[bytes] = []
    depth = values = 0
    kept_to = 0  # up to where the body has been copied to `pieces`
    cut_at = -1  # where the part that is too deep began; -1 outside such a part
    for token in _TOKENS.finditer(body):
        start = token.start()
        mark = body[start : start + 1]
        if mark == b'"':
            continue
        if mark in _CLOSING:
            if depth > MAX_LEVELS and depth - 1 == MAX_LEVELS and cut_at >= 0:
                pieces += (body[kept_to:cut_at], b'"', TOO_DEEP.encode(), b'"')
                kept_to, cut_at = token.end(), -1
            depth -= 1
            continue
        values += 1
        if values > MAX_VALUES:
            raise TooManyValuesError(_uid_of(body))
        if mark in _OPENING:
            depth += 1
            if depth == MAX_LEVELS + 1:
                cut_at = start
    if cut_at >= 0:
        raise InputError("review", "not an AdmissionReview: it is incomplete")
    return b"".join(pieces) + body[kept_to:] if pieces else body


def _uid_of(body: bytes) -> str:
    found = _UID.search(body[:_UID_WITHIN])
    return found[1].decode() if found else ""


def _int(text: str) -> int | float:
    return int(text) if len(text) <= _MAX_DIGITS else float(text)


_DECODER = json.JSONDecoder(parse_int=_int)


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
