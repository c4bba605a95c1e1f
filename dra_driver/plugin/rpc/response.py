"""Response reader: the frames that a server sends for the one call on a connection come in, and the answer goes out.

All limits in bytes are kept here; the client keeps the time limit.
Source: RFC 9113, sections 4 to 6 and 8.1; gRPC over HTTP2, "Responses"; gRPC's status codes.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from dra_driver.plugin.rpc import frames
from dra_driver.plugin.rpc.frames import Http2Frame
from dra_driver.plugin.rpc.header_fields import FieldDecoder
from dra_driver.plugin.rpc.stream import message_of

STREAM = 1  # the stream number of the call
HEAD_BYTES = 5  # of the prefix that gRPC puts before a message
_BLOCK_BYTES = 64 * 1024  # of the header fields, at most, as they are sent
_BESIDE_BYTES = 1 << 20  # of all frames that do not belong to the message, at most
_CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)


class RpcFault(Exception):
    """A call failed; `code` is gRPC's name for the reason."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code, self.details = code, details


class RpcResponse(NamedTuple):
    """The message of an answer, and the metadata that the server sent after it."""

    message: bytes
    metadata: dict[str, str]


class ResponseReader:
    """The answer to one call, as far as it has been received; its message may have at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._maximum = max_bytes
        self._decoder = FieldDecoder()
        self._buffer, self._body = bytearray(), bytearray()
        self._beside = 0
        # Flags and stream of header fields that continue in the next frame, and what was received of them.
        self._block: tuple[tuple[int, int], bytearray] | None = None
        self._has_head = False

    def take(self, piece: bytes) -> tuple[RpcResponse | None, bytes]:
        """Process what the server sent; return the answer once it is complete, and the bytes to send back.

        Raises: RpcFault for a status other than OK, for an answer that is too large, and for one that is not HTTP/2.
        """
        self._buffer += piece
        reply = b""
        try:
            for frame in frames.whole_frames(self._buffer):
                answer, more = self._process(frame)
                reply += more
                if answer is not None:
                    return answer, reply
        except ValueError as error:
            raise RpcFault("INTERNAL", f"the server broke the rules of HTTP/2: {error}") from error
        return None, reply

    def _process(self, frame: Http2Frame) -> tuple[RpcResponse | None, bytes]:
        """Process one frame. Raises: RpcFault, ValueError."""
        kind, flags, stream, payload = frame
        if kind != frames.DATA:
            self._beside += len(payload) + frames.HEAD_BYTES
        if self._beside > _BESIDE_BYTES:
            raise ValueError("the server sends more beside the answer than is allowed")
        if kind in (frames.HEADERS, frames.CONTINUATION) or self._block is not None:
            return self._fields(frame), b""
        if kind == frames.DATA:
            self._data(frame)
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            return None, frames.frame(frames.SETTINGS, frames.ACK, 0)
        elif kind == frames.PING and len(payload) != frames.PING_BYTES:
            raise ValueError("a ping does not have eight bytes")
        elif kind == frames.PING and not flags & frames.ACK:
            return None, frames.frame(frames.PING, frames.ACK, 0, payload)
        elif kind == frames.GOAWAY and int.from_bytes(payload[:4]) & frames.MAX_WINDOW < STREAM:
            raise RpcFault("UNAVAILABLE", "the server accepts no calls any more")
        elif kind == frames.RST_STREAM and stream == STREAM:
            raise RpcFault("UNAVAILABLE", f"the server has ended the call (HTTP/2 error {frames.number_of(payload)})")
        return None, b""

    def _data(self, frame: Http2Frame) -> None:
        kind, flags, stream, payload = frame
        if stream != STREAM or not self._has_head:
            raise ValueError("data of another call, or before the beginning of the answer")
        content = frames.content(kind, flags, payload)
        self._body += content
        self._beside += len(payload) - len(content) + frames.HEAD_BYTES
        if len(self._body) > self._maximum + HEAD_BYTES:
            raise RpcFault("RESOURCE_EXHAUSTED", f"the answer has more than {self._maximum} bytes")
        if flags & frames.END_STREAM:
            raise ValueError("an answer without a status")

    def _fields(self, frame: Http2Frame) -> RpcResponse | None:
        """Process header fields: those that begin the answer, or those that end it. Raises: RpcFault, ValueError."""
        kind, flags, stream, payload = frame
        if self._block is None:
            wanted, begun, block = frames.HEADERS, (flags, stream), bytearray(frames.content(kind, flags, payload))
        else:
            wanted, (begun, block) = frames.CONTINUATION, self._block
            block += payload
        if kind != wanted or stream != begun[1] or len(block) > _BLOCK_BYTES:
            raise ValueError("header fields that are interrupted, or too long")
        self._block = None if flags & frames.END_HEADERS else (begun, block)
        if self._block is not None:
            return None
        fields = dict(self._decoder.decode(bytes(block)))
        if stream != STREAM:
            raise ValueError("header fields of another call")
        if begun[0] & frames.END_STREAM:
            return self._end(fields)
        if self._has_head or fields.get(b":status") != b"200":
            raise ValueError(f"the answer's HTTP status is {fields.get(b':status')!r}")
        self._has_head = True
        return None

    def _end(self, fields: dict[bytes, bytes]) -> RpcResponse:
        """Return the answer that these fields end. Raises: RpcFault, ValueError."""
        status = fields.get(b"grpc-status", b"")
        if status != b"0":
            number = int(status) if status.isdigit() and len(status) < 3 else len(_CODES)
            code = _CODES[number] if number < len(_CODES) else "UNKNOWN"
            raise RpcFault(code, unquote(fields.get(b"grpc-message", b"").decode("ascii", "replace"), errors="replace"))
        own = {name.decode("ascii", "replace"): value.decode("utf-8", "replace") for name, value in fields.items()}
        return RpcResponse(message_of(self._body), own)
