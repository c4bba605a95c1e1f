"""Handle one connection's requests, from the first byte of a head to the last byte of an answer.

In: bytes of anyone who can reach the port. Out: answers. The size of heads and bodies is checked before they are read,
and the time to read them is limited as a whole. The work ends when the caller has gone.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.probes import QUICK_PAGES
from dra_driver.telemetry.status_connection import PageResponse
from dra_driver.webhook.connections import ClientConnection
from dra_driver.webhook.decoding import TooManyValuesError, decode
from dra_driver.webhook.load_limits import LoadLimits, OverloadedError
from dra_driver.webhook.review_deadline import CallerGoneError, ReviewDeadline, is_closed_by_peer

log = logging.getLogger(__name__)

MAX_BYTES = 3 << 20  # the API server's own limit. Source: k8s.io/apiserver, MaxRequestBodyBytes
MAX_HEAD_BYTES = 16 * 1024
HANDSHAKE_SECONDS = 5.0
IDLE_SECONDS = 90.0
READ_SECONDS = 5.0  # for head and body together
WRITE_SECONDS = 5.0
_LOAD_WAIT_SECONDS = 3.0  # to wait until there is room for a large body, or for one more review
_ERROR_CHARACTERS = 200
_JSON = "application/json"
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """The functions, by path, and the limits that all connections of a server share.

    `unread` answers, given its UID, a review that holds too many values to be decoded. `answered` is called with the
    path and the outcome of each request. `refusal` returns why a connection may not ask for reviews, "" if it may.
    """

    reviewers: Mapping[str, Callable[[Any, ReviewDeadline], Wire]]
    unread: Mapping[str, Callable[[str], Wire]]
    pages: Mapping[str, Callable[[], PageResponse]]
    answered: Callable[[str, str], None]
    refusal: Callable[[Any], str]
    load_limits: LoadLimits


class _HeadReader:
    """A connection's file that limits how many bytes the head of a request may have."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MAX_HEAD_BYTES
        self.read, self.close, self.peek = file.read, file.close, file.peek

    def begin(self) -> None:
        """Start the count again, because the next line is the first of a head."""
        self._left = MAX_HEAD_BYTES

    def readline(self, maximum: int = -1) -> bytes:
        """Read a line. Raises: LineTooLong if the head is too large."""
        line: bytes = self._file.readline(self._left + 1 if maximum < 0 else min(maximum, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head")
        return line


def handler_of(shared: HandlerContext) -> type[BaseHTTPRequestHandler]:
    """Return the handler class for one server."""
    return type("Handler", (_Handler,), {"shared": shared})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    wbufsize = -1  # headers and body go out in one write
    shared: HandlerContext

    def __init__(self, request: tuple[Any, ClientConnection], client_address: Any, server: Any) -> None:
        sock, self._connection = request
        super().__init__(sock, client_address, server)

    def setup(self) -> None:
        super().setup()
        self._head = _HeadReader(self.rfile)
        self.rfile = self._head  # type: ignore[assignment]

    def handle_one_request(self) -> None:
        """Wait for a request, read it within the time limit, and answer it."""
        self._connection.wait(IDLE_SECONDS)
        self.close_connection = True
        if not self._head.peek(1):
            return
        self._connection.wait(READ_SECONDS)
        self._head.begin()
        try:
            super().handle_one_request()
        except LineTooLong:  # for the first line, the base class does not handle it
            self.close_connection = True

    def do_POST(self) -> None:
        path, answered = self.path.partition("?")[0], self.shared.answered
        if path not in self.shared.reviewers:
            self._refuse(404, "no such webhook")
            return
        if why := self.shared.refusal(self.connection):
            answered(path, "stranger")
            self._refuse(403, why)
            return
        length = self._length()
        if length is None:
            answered(path, "bad-review")
            return
        try:
            with self.shared.load_limits.for_body(length, _LOAD_WAIT_SECONDS):
                self._review(path, length)
        except OverloadedError:
            answered(path, "no-room")
            self._refuse(503, "too many reviews at a time")
        except CallerGoneError:
            answered(path, "gone")
            self.close_connection = True

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if quick := QUICK_PAGES.get(path):
            answer = quick
        elif page := self.shared.pages.get(path):
            answer = page()
        else:
            answer = PageResponse(404, b"try /healthz, /readyz or /metrics\n")
        self._answer(answer.status, answer.body, answer.content_type)

    def _length(self) -> int | None:
        """Return the length of a body to read; answer the request and return None if the body must not be read."""
        length = self.headers.get("Content-Length", "")
        kind = self.headers.get("Content-Type", _JSON)
        if kind != _JSON:  # it may have parameters or capital letters; API servers send neither, which saves parsing
            kind = self.headers.get_content_type()
        if re.fullmatch("[0-9]+", length) is None:
            self._refuse(411, "Content-Length is needed")
        elif len(length) > len(str(MAX_BYTES)) or int(length) > MAX_BYTES:
            self._refuse(413, f"a review has at most {MAX_BYTES} bytes")
        elif kind != _JSON:
            self._refuse(415, f"{_JSON} is expected")
        else:
            return int(length)
        return None

    def _review(self, path: str, length: int) -> None:
        """Read a review and answer it. Raises: OverloadedError, CallerGoneError."""
        self._connection.wait(READ_SECONDS)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            self.shared.answered(path, "bad-review")
            return
        self._connection.work()
        deadline = ReviewDeadline(is_gone=lambda: is_closed_by_peer(self.connection))
        with self.shared.load_limits.for_review(path, length, _LOAD_WAIT_SECONDS):
            deadline.check_caller()
            status, reply, outcome = self._outcome_of(path, body, deadline)
        self.shared.answered(path, outcome)
        self._answer(status, reply, _JSON if status == 200 else "text/plain; charset=utf-8")

    def _outcome_of(self, path: str, body: bytes, deadline: ReviewDeadline) -> tuple[int, bytes, str]:
        """Return status, body and outcome. Raises: CallerGoneError."""
        try:
            reply = self._reviewed(path, body, deadline)
        except InputError as error:
            return 400, f"{error.message[:_ERROR_CHARACTERS]}\n".encode("utf-8", "replace"), "bad-review"
        except CallerGoneError:
            raise
        except Exception:
            log.exception("review failed", extra=fields(path=path))
            return 500, b"internal error\n", "bug"
        return 200, _ENCODER.encode(reply).encode("utf-8", "replace"), _outcome(reply)

    def _reviewed(self, path: str, body: bytes, deadline: ReviewDeadline) -> Wire:
        try:
            return self.shared.reviewers[path](decode(body), deadline)
        except TooManyValuesError as error:
            unread = self.shared.unread.get(path)
            if unread is None or not error.uid:
                raise
            return unread(error.uid)

    def _refuse(self, status: int, why: str) -> None:
        """Answer without having read the body, and close, because the next request's start could not be found."""
        self.close_connection = True
        self._answer(status, f"{why}\n".encode())

    def _answer(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self._connection.wait(WRITE_SECONDS)
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep reviews out of the log."""


def _outcome(reply: Wire) -> str:
    response = reply["response"]
    if not response["allowed"]:
        return "refused"
    return "warned" if response.get("warnings") else "allowed"
