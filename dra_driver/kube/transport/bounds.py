"""Limit how much of an answer is read, and for how long, whatever the other side sends.

In: a connected socket. Out: its bytes, while the answer that is being read has time and bytes left. The deadline and
the limits are those of the whole answer: interim answers, head, chunks, trailers and body together.
"""

from __future__ import annotations

import socket
import time

# The largest request that the API server accepts is 3 MiB, and etcd's is 1.5 MiB; a page of a list that is larger than
# this is requested again with fewer objects.
MOST_BYTES = 8 << 20
_HEAD_BYTES = 256 * 1024
_RAW_BYTES = MOST_BYTES + MOST_BYTES // 4  # chunked transfer adds a few bytes to each chunk of some KiB
_PIECE_BYTES = 64 * 1024


class TooLargeError(OSError):
    """The answer is longer than the limit."""


class BrokenError(OSError):
    """The connection ended before the answer did, or what came is not HTTP."""


class AnswerBounds:
    """What may still be read of one answer."""

    def __init__(self, seconds: float) -> None:
        self.bytes_left, self.until = _HEAD_BYTES, time.monotonic() + seconds

    def allow_body(self) -> None:
        """Allow as many bytes as one object or one page may have, with the same deadline."""
        self.bytes_left = _RAW_BYTES


class BoundedReader:
    """A reader of one socket. Bytes count against the bounds when they are received into `buffer`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.buffer = bytearray()
        self.bounds = AnswerBounds(0.0)

    def fill(self) -> bool:
        """Wait for bytes and add them to the buffer; return False at the end of the stream.

        Raises: TooLargeError, TimeoutError, OSError.
        """
        bounds = self.bounds
        if bounds.bytes_left <= 0:
            raise TooLargeError("the answer is too large")
        left = bounds.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end in time")
        self._sock.settimeout(left)
        piece = self._sock.recv(min(_PIECE_BYTES, bounds.bytes_left))
        bounds.bytes_left -= len(piece)
        self.buffer += piece
        return bool(piece)

    def until(self, mark: bytes) -> bytes:
        """Return the bytes before the next `mark`, and drop both from the buffer. Raises: BrokenError, as `fill`."""
        buffer, seen = self.buffer, 0
        while (found := buffer.find(mark, seen)) < 0:
            seen = max(0, len(buffer) - len(mark) + 1)
            if not self.fill():
                raise BrokenError("the connection ended within an answer" if buffer else "the connection was closed")
        taken = bytes(buffer[:found])
        del buffer[: found + len(mark)]
        return taken

    def some(self, most: int) -> bytes:
        """Return at least one byte and at most `most`; b"" at the end of the stream. Raises: as `fill`."""
        buffer = self.buffer
        if not buffer and not self.fill():
            return b""
        taken = bytes(buffer[:most])
        del buffer[:most]
        return taken
