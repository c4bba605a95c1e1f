"""Visits: connections to the status port, each with one request, a limit and an end.

In: a socket that was accepted. Out: the path that is asked for, and later the answer on its way, piece by piece.
Nothing here waits: its owner calls when the socket is ready.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field
from http import HTTPStatus

MOST_HEAD = 8192
_ENDS = (b"\r\n\r\n", b"\n\n")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


@dataclass(eq=False, slots=True)
class Visit:
    """One connection. `until` is the moment at which it is over, finished or not."""

    sock: socket.socket
    until: float
    is_asked: bool = False
    _head: bytearray = field(default_factory=bytearray)
    _left: memoryview = field(default_factory=lambda: memoryview(b""))

    def read(self) -> str | Answer | None:
        """Read on. Return the path once it is there, an answer to what is none, or None: call again.

        Raises: OSError when the visitor is gone.
        """
        try:
            piece = self.sock.recv(MOST_HEAD)
        except BlockingIOError:
            return None
        if not piece:
            raise ConnectionResetError("gone")
        self._head += piece
        if not any(end in self._head for end in _ENDS):
            return Answer(431, b"the request is too long\n") if len(self._head) > MOST_HEAD else None
        self.is_asked = True
        return _path(bytes(self._head))

    def answer(self, answer: Answer) -> bool:
        """Begin to send. Return whether all of it is gone. Raises: OSError."""
        phrase = HTTPStatus(answer.status).phrase
        head = (
            f"HTTP/1.1 {answer.status} {phrase}\r\nContent-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
        )
        body = b"" if self._head.startswith(b"HEAD ") else answer.body
        self.is_asked, self._left = True, memoryview(head.encode() + body)
        return self.send()

    def send(self) -> bool:
        """Send on. Return whether all of it is gone. Raises: OSError."""
        with contextlib.suppress(BlockingIOError):
            while self._left:
                self._left = self._left[self.sock.send(self._left) :]
        return not self._left

    def end(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        self.sock.close()


def _path(head: bytes) -> str | Answer:
    words = head.split(b"\n", 1)[0].split()
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return Answer(400, b"this port speaks HTTP/1.1\n")
    if words[0] not in (b"GET", b"HEAD"):
        return Answer(405, b"GET is expected\n")
    return words[1].partition(b"?")[0].decode("latin-1")
