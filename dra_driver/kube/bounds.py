"""Limit how much of an answer is read, and for how long, whatever the other side sends.

In: connections of the HTTP library. Out: the same connections, whose reads from the socket share a deadline and a
number of bytes for the whole answer. The library itself limits only the time of each read, and limits neither endless
heads (interim answers, trailers) nor bodies. Accept-Encoding is never sent and nothing is decompressed.
"""

from __future__ import annotations

import io
import socket
import time
from functools import partial
from http.client import HTTPResponse
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection

# The largest request that the API server accepts is 3 MiB, and etcd's is 1.5 MiB; a page of a list that is larger than
# this is requested again with fewer objects.
MOST_BYTES = 8 << 20
_HEAD_BYTES = 256 * 1024
_RAW_BYTES = MOST_BYTES + MOST_BYTES // 4  # chunked transfer adds a few bytes to each chunk of some KiB


class TooLargeError(OSError):
    """The answer is longer than the limit."""


class Bounds:
    """What may still be read of one answer. `has_leftover` is set if bytes came after its end."""

    def __init__(self, most_bytes: int, seconds: float) -> None:
        self.bytes_left, self.until = most_bytes, time.monotonic() + seconds
        self.is_over = self.has_leftover = False

    def allow_body(self) -> None:
        """Allow as many bytes as one object or one page may have, with the same deadline."""
        self.bytes_left = _RAW_BYTES


class _BoundedFile(io.RawIOBase):
    """The socket's file, read within bounds."""

    def __init__(self, file: io.RawIOBase, sock: socket.socket, bounds: Bounds) -> None:
        self._file, self._sock, self._bounds = file, sock, bounds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        bounds = self._bounds
        if bounds.is_over:
            return None  # only bytes that are already in the buffer are looked at
        if bounds.bytes_left <= 0:
            raise TooLargeError("the answer is too large")
        left = bounds.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end in time")
        self._sock.settimeout(left)
        count: int | None = self._file.readinto(memoryview(buffer)[: bounds.bytes_left])
        bounds.bytes_left -= count or 0
        return count

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            super().close()


class _BoundedResponse(HTTPResponse):
    """The standard library's response on a bounded file."""

    def __init__(self, sock: socket.socket, *arguments: Any, bounds: Bounds, **more: Any) -> None:
        super().__init__(sock, *arguments, **more)
        self._bounds = bounds
        self.fp: Any = io.BufferedReader(_BoundedFile(self.fp.detach(), sock, bounds))

    def _close_conn(self) -> None:
        """Record, at the end of the answer, whether the other side sent more bytes."""
        self._bounds.is_over = True
        self._bounds.has_leftover = bool(self.fp.peek(1))
        super()._close_conn()  # type: ignore[misc]


class _Bounded:
    """A connection that gives every answer its bounds, starting from the connection's timeout."""

    timeout: float
    response_class: Any

    def getresponse(self) -> Any:
        bounds = Bounds(_HEAD_BYTES, self.timeout)
        self.response_class = partial(_BoundedResponse, bounds=bounds)
        answer: Any = super().getresponse()  # type: ignore[misc]
        bounds.allow_body()
        answer.bounds = bounds
        return answer


class BoundedHttp(_Bounded, HTTPConnection):  # type: ignore[misc]
    """An HTTP connection with bounded answers."""


class BoundedHttps(_Bounded, HTTPSConnection):  # type: ignore[misc]
    """An HTTPS connection with bounded answers."""


def read_body(answer: Any) -> bytes:
    """Read the rest of an answer. Raises: TooLargeError; errors of the HTTP library."""
    if str(answer.headers.get("Content-Encoding") or "identity").lower() != "identity":
        raise TooLargeError("the answer is compressed, which was not asked for")
    body = bytearray()
    while piece := answer.read(min(256 * 1024, MOST_BYTES + 1 - len(body))):
        body += piece
        if len(body) > MOST_BYTES:
            raise TooLargeError("the answer is too large")
    return bytes(body)
