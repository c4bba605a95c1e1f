"""HttpResponse: one response of an HTTP/1.1 server, read by the standard library, within limits.

Out: status, header fields, and the body piece by piece. An answer that two readers could take to end at different
places is refused: one with two lengths, or with a length beside a transfer coding. Nothing is decompressed, because no
compression is asked for.
Source: RFC 9112, section 6.3.
"""

from __future__ import annotations

import http.client
import socket
from io import BufferedReader

from dra_driver.kube.transport.bounds import MAX_BYTES, BrokenError, LimitedInput, ResponseLimits, TooLargeError
from dra_driver.kube.transport.large_answers import LARGE_BYTES, LargeTurn

_PIECE_BYTES = 256 * 1024
_SWITCHING = 101


class _Input(BufferedReader):
    """The bytes of one answer, and at its end whether more bytes came with it."""

    has_rest = False

    def __init__(self, limited: LimitedInput) -> None:
        super().__init__(limited)
        self._limited = limited

    def close(self) -> None:
        """See what is left, and let go of the socket."""
        if not self.closed:
            self._limited.is_over = True
            self.has_rest = bool(self.peek(1))
        super().close()


class LimitedResponse(http.client.HTTPResponse):
    """The standard library's response, whose bytes come within limits."""

    def __init__(self, sock: socket.socket, limits: ResponseLimits, method: str | None) -> None:
        super().__init__(sock, method=method)
        self.fp.close()
        self.fp = self.input = _Input(LimitedInput(sock, limits))


class HttpResponse:
    """An answer whose head was read. After one that `ends_connection`, nothing can follow on the same connection."""

    def __init__(self, response: LimitedResponse, bounds: ResponseLimits) -> None:
        """Check how the answer ends. Raises: BrokenError."""
        self._response, self.bounds = response, bounds
        self.status, self.headers = response.status, response.headers
        bounds.allow_body()
        self.ends_connection = response.will_close or self.status == _SWITCHING
        lengths = set(self.headers.get_all("content-length", []))
        coding = self.headers.get("transfer-encoding")
        if len(lengths) > 1 or (coding is not None and (lengths or coding.lower() != "chunked")):
            raise BrokenError("the answer has two lengths, a length beside a transfer coding, or another coding")
        if not all(length.isdecimal() for length in lengths):
            raise BrokenError(f"the answer's length is {min(lengths)[:40]!r}")
        self._end_if_over()

    def piece(self, maximum: int = _PIECE_BYTES) -> bytes:
        """Return the next bytes of the body; b"" at its end. Raises: BrokenError, TooLargeError, OSError."""
        if self._response.isclosed():
            return b""
        try:
            taken = self._response.read1(maximum)
        except (http.client.HTTPException, ValueError) as error:
            raise BrokenError(f"the answer is not HTTP, or ended too early: {error!r}") from error
        if not taken and self._response.length:
            raise BrokenError("the connection ended within an answer")
        if isinstance(self._response.chunk_left, int) and self._response.chunk_left < 0:
            raise BrokenError("a chunk of the answer has a negative size")
        self._end_if_over()
        return taken

    def whole(self, turn: LargeTurn | None = None) -> bytes:
        """Return the body to its end; a large one takes its turn. Raises: BrokenError, TooLargeError, OSError."""
        if self.is_encoded:
            raise TooLargeError("the answer is compressed, which was not asked for")
        body = bytearray()
        while piece := self.piece():
            body += piece
            if turn is not None and len(body) > LARGE_BYTES:
                turn.take()
            if len(body) > MAX_BYTES:
                raise TooLargeError("the answer is too large")
        return bytes(body)

    @property
    def is_encoded(self) -> bool:
        """Return whether the body is compressed."""
        return str(self.headers.get("content-encoding", "identity")).lower() != "identity"

    @property
    def may_be_followed(self) -> bool:
        """Return whether the whole answer was read, and the connection is ready for another request."""
        return self._response.isclosed() and not self.ends_connection and not self._response.input.has_rest

    def _end_if_over(self) -> None:
        """Let go of the connection once the last byte was read."""
        if self._response.length == 0 and not self._response.chunked:
            self._response.close()
