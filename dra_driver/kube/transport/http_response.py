"""HttpResponse: one response of an HTTP/1.1 server, read strictly and within bounds.

In: a bounded reader at the first byte of an answer. Out: status, header fields, and the body piece by piece. An answer
that two readers could take to end at different places is refused: one with two lengths, or with a length beside a
transfer coding. Nothing is decompressed, because Accept-Encoding is never sent.
Source: RFC 9110, section 15.2 (interim answers); RFC 9112, sections 4, 5, 6.3 and 7.1.
"""

from __future__ import annotations

import re
from operator import methodcaller

from dra_driver.kube.transport.bounds import MAX_BYTES, BoundedReader, BrokenError, TooLargeError
from dra_driver.kube.transport.large_answers import LARGE_BYTES, LargeTurn

_TEXT = r"[^\x00-\x08\x0a-\x1f\x7f]*"
_STATUS_LINE = re.compile(rf"HTTP/1\.([01]) ([1-9][0-9]{{2}})(?: {_TEXT})?")
_FIELD = re.compile(rf"(?:\A|\r\n)([!#$%&'*+.^_`|~0-9A-Za-z-]++):({_TEXT})(?=\r\n|\Z)")  # a whole line
_stripped = methodcaller("strip", " \t")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_PIECE_BYTES = 256 * 1024
_SWITCHING = 101


class HttpResponse:
    """An answer whose head was read. After one that `ends_connection`, nothing can follow on the same connection."""

    def __init__(self, reader: BoundedReader, *, has_body: bool = True) -> None:
        self._reader = reader
        self.bounds = reader.bounds
        self.status, self.headers, minor = _final_head(reader)
        self.bounds.allow_body()
        connection = self.headers.get("connection", "").lower()
        self.ends_connection = minor == 0 or "close" in connection or self.status == _SWITCHING
        self._is_chunked = False
        self._left: int | None = None  # bytes of the body, or of the chunk; None if the body ends with the connection
        self._is_over = False
        self._frame(has_body=has_body)

    def piece(self, maximum: int = _PIECE_BYTES) -> bytes:
        """Return the next bytes of the body; b"" at its end. Raises: BrokenError, TooLargeError, OSError."""
        if self._is_over:
            return b""
        if self._is_chunked and not self._left and not self._has_chunk():
            return b""
        taken = self._reader.some(maximum if self._left is None else min(maximum, self._left))
        if self._left is None:
            self._is_over = not taken
            return taken
        if not taken:
            raise BrokenError("the connection ended within an answer")
        self._left -= len(taken)
        if self._is_chunked and not self._left and self._reader.until(b"\r\n"):
            raise BrokenError("a chunk is longer than its size")
        self._is_over = not self._is_chunked and not self._left
        return taken

    def whole(self, turn: LargeTurn | None = None) -> bytes:
        """Return the body to its end; a large one takes its turn. Raises: BrokenError, TooLargeError, OSError."""
        if self.is_encoded:
            raise TooLargeError("the answer is compressed, which was not asked for")
        first = self.piece()
        if self._is_over:
            return first
        body = bytearray(first)
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
        return self.headers.get("content-encoding", "identity").lower() != "identity"

    @property
    def may_be_followed(self) -> bool:
        """Return whether the whole answer was read, and the connection is ready for another request."""
        return self._is_over and not self.ends_connection and not self._reader.buffer

    def _frame(self, *, has_body: bool) -> None:
        """Determine where the body ends. Raises: BrokenError."""
        coding, length = self.headers.get("transfer-encoding"), self.headers.get("content-length")
        if coding is not None and (length is not None or coding.lower() != "chunked"):
            raise BrokenError("the answer has a length beside a transfer coding, or a coding other than chunked")
        if length is not None and not _LENGTH.fullmatch(length):
            raise BrokenError(f"the answer's length is {length[:40]!r}")
        if not has_body or self.status in (_SWITCHING, 204, 304):
            self._is_over = True
        elif coding is not None:
            self._is_chunked, self._left = True, 0
        elif length is not None:
            self._left = int(length)
            self._is_over = not self._left
        else:
            self.ends_connection = True

    def _has_chunk(self) -> bool:
        """Read the line before the next chunk, or the trailers after the last one; return whether a chunk follows."""
        line = self._reader.until(b"\r\n")
        found = _CHUNK_SIZE.fullmatch(line)
        if found is None:
            raise BrokenError("a chunk of the answer has no size")
        self._left = int(found[1], 16)
        if self._left:
            return True
        while self._reader.until(b"\r\n"):
            pass
        self._is_over = True
        return False


def _final_head(reader: BoundedReader) -> tuple[int, dict[str, str], int]:
    """Return status, fields and the protocol's minor version of the first answer that is not an interim one."""
    while True:
        status_line, _, lines = reader.until(b"\r\n\r\n").decode("latin-1").partition("\r\n")
        found = _STATUS_LINE.fullmatch(status_line)
        if found is None:
            raise BrokenError(f"the answer is not HTTP/1.1: {status_line[:40]!r}")
        status = int(found[2])
        if status >= 200 or status == _SWITCHING:
            return status, _fields(lines), int(found[1])


def _fields(lines: str) -> dict[str, str]:
    """Return the header fields by name in lower case, the first of those that occur twice. Raises: BrokenError."""
    found = _FIELD.findall(lines)
    if len(found) != (lines.count("\r\n") + 1 if lines else 0):
        raise BrokenError("a line of the answer's head is not a header field")
    if not found:
        return {}
    names, values = zip(*reversed(found), strict=True)
    # Blanks are stripped here because a pattern that matches them would take quadratic time.
    fields = dict(zip(map(str.lower, names), map(_stripped, values), strict=True))
    if len(fields) == len(found):
        return fields
    for name, value in found:
        if name.lower() in ("content-length", "transfer-encoding") and fields[name.lower()] != value.strip(" \t"):
            raise BrokenError(f"the answer has two fields {name}")
    return fields
