"""Limit how much of an answer is read, and for how long, whatever the other side sends.

In: a connected socket that does not block. Out: its bytes, while the answer that is being read has time and bytes left.
The deadline and the limits are those of the whole answer: interim answers, head, chunks, trailers and body together.
An answer never arrives at once, so a reader waits for input before it reads: a blocking socket would need four more
system calls for each answer.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import time

# The largest request that the API server accepts is 3 MiB, and etcd's is 1.5 MiB; a page of a list that is larger than
# this is requested again with fewer objects.
MAX_BYTES = 8 << 20
_HEAD_BYTES = 256 * 1024
_RAW_BYTES = MAX_BYTES + MAX_BYTES // 4  # chunked transfer adds a few bytes to each chunk of some KiB
_PIECE_BYTES = 16 * 1024  # as much as a record of TLS holds
_LONGEST_WAIT_S = 3600.0  # after this wait, the time that is left is computed again


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


class BoundedReader:
    """Reads from one socket, and writes to it. Bytes count against the bounds when they are received into `buffer`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._input = select.poll()
        self._input.register(sock, select.POLLIN)
        self.buffer = bytearray()
        self.bounds = ResponseLimits(0.0)

    def is_quiet(self) -> bool:
        """Return whether the other side has neither ended the connection nor sent anything that is still unread."""
        return not self._is_pending() and not self._input.poll(0)

    def send(self, message: bytes) -> None:
        """Send a whole message, within the bounds' time. Raises: TimeoutError, OSError."""
        rest = memoryview(message)
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError) as wanted:
                self._await_either(wanted)

    def fill(self) -> bool:
        """Wait for bytes and add them to the buffer; return False at the end of the stream.

        Raises: TooLargeError, TimeoutError, OSError.
        """
        bounds = self.bounds
        if bounds.bytes_left <= 0:
            raise TooLargeError("the answer is too large")
        piece = self._received(min(_PIECE_BYTES, bounds.bytes_left))
        bounds.bytes_left -= len(piece)
        self.buffer += piece
        return bool(piece)

    def _received(self, maximum: int) -> bytes:
        """Wait for bytes and return them; b"" at the end of the stream. Raises: TimeoutError, OSError."""
        while True:
            left_ms = self._left_ms()
            if self._is_pending() or self._input.poll(left_ms):
                try:
                    return self._sock.recv(maximum)
                except (ssl.SSLWantReadError, BlockingIOError):
                    continue  # only a part of a TLS record has arrived, which can't be decrypted yet
                except ssl.SSLWantWriteError as wanted:
                    self._await_either(wanted)

    def _await_either(self, wanted: OSError) -> None:
        """Wait until the socket is readable or writable, as the interrupted operation needs. Raises: TimeoutError."""
        output = select.poll()
        output.register(self._sock, select.POLLIN if isinstance(wanted, ssl.SSLWantReadError) else select.POLLOUT)
        output.poll(self._left_ms())

    def _left_ms(self) -> int:
        """Return the time that is left, in milliseconds. Raises: TimeoutError if none is left."""
        left = self.bounds.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end in time")
        return math.ceil(min(left, _LONGEST_WAIT_S) * 1000)

    def _is_pending(self) -> bool:
        """Return whether decrypted bytes are waiting; poll does not report the socket as readable for these."""
        return self._tls is not None and self._tls.pending() > 0

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

    def some(self, maximum: int) -> bytes:
        """Return at least one byte and at most `maximum`; b"" at the end of the stream. Raises: as `fill`."""
        buffer = self.buffer
        if not buffer and not self.fill():
            return b""
        taken = bytes(buffer[:maximum])
        del buffer[:maximum]
        return taken
