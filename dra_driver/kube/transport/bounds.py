"""Limit how much of an answer is read, and for how long, whatever the other side sends.

The deadline and the limits are those of the whole answer: interim answers, head, chunks, trailers and body together.
"""

from __future__ import annotations

import io
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The largest request that the API server accepts is 3 MiB, and etcd's is 1.5 MiB; a page of a list that is larger than
# this is requested again with fewer objects.
MAX_BYTES = 8 << 20
_HEAD_BYTES = 256 * 1024
_RAW_BYTES = MAX_BYTES + MAX_BYTES // 4  # chunked transfer adds a few bytes to each chunk of some KiB


class TooLargeError(OSError):
    """The answer is longer than the limit."""


class BrokenError(OSError):
    """The connection ended before the answer did, or the bytes that arrived are not HTTP."""


class ResponseLimits:
    """What may still be read of one answer, and by when: `until` is a time of `time.monotonic`."""

    def __init__(self, until: float) -> None:
        self.bytes_left, self.until = _HEAD_BYTES, until

    def allow_body(self) -> None:
        """Allow as many bytes as one object or one page may have, with the same deadline."""
        self.bytes_left = _RAW_BYTES

    def seconds_left(self) -> float:
        """Return the time that is left. Raises: TimeoutError if none is left."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end in time")
        return left


class LimitedInput(io.RawIOBase):
    """The bytes that arrive on a socket, for one answer."""

    def __init__(self, sock: socket.socket, limits: ResponseLimits) -> None:
        self._sock, self._limits = sock, limits
        self._input = sock.makefile("rb", buffering=0)  # keeps the socket open until this is closed
        self.is_over = False  # whether the answer was read, so that nothing more is waited for

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        """Wait for bytes, and return how many there are; 0 at the end. Raises: TooLargeError, TimeoutError, OSError."""
        if self.is_over:
            return 0
        if self._limits.bytes_left <= 0:
            raise TooLargeError("the answer is too large")
        self._sock.settimeout(self._limits.seconds_left())
        count = self._sock.recv_into(memoryview(buffer)[: self._limits.bytes_left])
        self._limits.bytes_left -= count
        return count

    def close(self) -> None:
        """Let go of the socket."""
        self._input.close()
        super().close()
