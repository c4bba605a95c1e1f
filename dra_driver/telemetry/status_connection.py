"""Connections to the status port, each with one request, a size limit and a deadline.

In: an accepted socket. Out: the requested path, and later the answer, sent piece by piece. Nothing here blocks: the
owner calls when the socket is ready.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field
from http import HTTPStatus

MAX_HEAD = 8192
_ENDS = (b"\r\n\r\n", b"\n\n")


@dataclass(frozen=True, slots=True)
class PageResponse:
    """The answer of a page."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


@dataclass(eq=False, slots=True)
class StatusConnection:
    """One connection. `until` is the time at which it ends, finished or not."""

    sock: socket.socket
    until: float
    is_asked: bool = False
    _head: bytearray = field(default_factory=bytearray)
    _left: memoryview = field(default_factory=lambda: memoryview(b""))

    def read(self) -> str | PageResponse | None:
        """Return the path once it is complete, an answer to an invalid request, or None to be called again.

        Raises: OSError if the client is gone.
        """
        try:
            piece = self.sock.recv(MAX_HEAD)
        except BlockingIOError:
            return None
        if not piece:
            raise ConnectionResetError("gone")
        self._head += piece
        if not any(end in self._head for end in _ENDS):
            return PageResponse(431, b"the request is too long\n") if len(self._head) > MAX_HEAD else None
        self.is_asked = True
        return _path(bytes(self._head))

    def token(self) -> str:
        """Return the bearer token that the request came with; "" if it has none."""
        for line in bytes(self._head).split(b"\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"authorization":
                scheme, _, token = value.strip().partition(b" ")
                return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""
        return ""

    def answer(self, answer: PageResponse) -> bool:
        """Start to send an answer. Return whether all of it is sent. Raises: OSError."""
        phrase = HTTPStatus(answer.status).phrase
        head = (
            f"HTTP/1.1 {answer.status} {phrase}\r\nContent-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
        )
        body = b"" if self._head.startswith(b"HEAD ") else answer.body
        self.is_asked, self._left = True, memoryview(head.encode() + body)
        return self.send()

    def send(self) -> bool:
        """Send more of the answer. Return whether all of it is sent. Raises: OSError."""
        with contextlib.suppress(BlockingIOError):
            while self._left:
                self._left = self._left[self.sock.send(self._left) :]
        return not self._left

    def end(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        self.sock.close()


def _path(head: bytes) -> str | PageResponse:
    words = head.split(b"\n", 1)[0].split()
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return PageResponse(400, b"this port speaks HTTP/1.1\n")
    if words[0] not in (b"GET", b"HEAD"):
        return PageResponse(405, b"GET is expected\n")
    return words[1].partition(b"?")[0].decode("latin-1")
