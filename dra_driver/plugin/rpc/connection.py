"""RPC connection: one HTTP/2 connection of a client, with its streams.

In: bytes from the socket, read by whichever thread finds them there. Out: complete requests, each once, and what
`ResponseWriter` writes. If a client breaks the rules of HTTP/2, its connection is closed.
Source: RFC 9113, sections 3.4, 5 and 6.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from dra_driver.plugin.rpc import frames
from dra_driver.plugin.rpc.call import StatusCode
from dra_driver.plugin.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE, Http2Frame
from dra_driver.plugin.rpc.header_fields import FieldDecoder
from dra_driver.plugin.rpc.stream import RpcStream
from dra_driver.plugin.rpc.writer import ConnectionLost, ResponseWriter

STREAMS = 512  # how many may be open at the same time
REQUEST_BYTES = 1 << 20  # of one request, at most; the kubelet's have about a hundred bytes for each claim
_BLOCK_BYTES = 64 * 1024  # of one request's header fields, at most, as they are sent
_PIECE_BYTES = 16 * 1024
_HELD_BYTES = 4 << 20  # the most that the large ones of the requests that are open may have together
_LARGE_BYTES = 16 * 1024  # a request that has more is a large one
_FLOOD = 4096  # frames, and KiB, that a client may send within a second while none of its calls is answered


class RpcConnection:
    """A connected socket. Any thread may call any method."""

    def __init__(self, sock: socket.socket) -> None:
        """Send the server's settings. Raises: ConnectionLost."""
        self._sock, self._writer = sock, ResponseWriter(sock)
        self._reading = threading.Lock()  # guards everything below, except that streams are removed without it
        self._buffer = bytearray()
        self._has_preface = self._has_more = self._is_leaving = False
        self._decoder = FieldDecoder()
        self._block: tuple[int, int, bytearray] | None = None  # header fields that continue in the next frame
        self._streams: dict[int, RpcStream] = {}
        self._last = 0  # the number of the newest stream
        self._unacknowledged = 0  # bytes received since the last window update
        self._received, self._since = 0, time.monotonic()  # frames and KiB without an answer, and since when
        more = frames.number_frame(frames.WINDOW_UPDATE, 0, REQUEST_BYTES - frames.WINDOW_BYTES)
        values = {frames.MAX_CONCURRENT_STREAMS: STREAMS, frames.INITIAL_WINDOW_SIZE: REQUEST_BYTES}
        self._writer.write(frames.settings(values) + more)

    def requests(self) -> list[RpcStream]:
        """Read what has arrived, and return the requests that are complete now. Raises: ConnectionLost."""
        with self._reading:
            complete: list[RpcStream] = []
            while self._receive():  # everything is read, because no event reports bytes that are left
                try:
                    complete += self._complete()
                except ValueError as error:
                    with contextlib.suppress(ConnectionLost):
                        self._writer.reply(frames.go_away(self._last, frames.PROTOCOL_ERROR))
                    raise ConnectionLost(f"the client broke the rules of HTTP/2: {error}") from error
                if not self._has_more:
                    break
            return complete

    def _receive(self) -> bool:
        """Read into the buffer, and return whether there was anything to read. Raises: ConnectionLost."""
        try:
            piece = self._sock.recv(_PIECE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False  # another thread has read it
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if not piece:
            raise ConnectionLost("the client has closed the connection")
        self._buffer += piece
        self._has_more = len(piece) == _PIECE_BYTES
        return True

    def _count(self, received: int) -> None:
        """Count what was received, and end the connection if it is a flood. Raises: ConnectionLost."""
        self._received += received
        if self._received <= _FLOOD:
            return
        now = time.monotonic()
        if now - self._since < 1:
            with contextlib.suppress(ConnectionLost):
                self._writer.reply(frames.go_away(self._last, frames.ENHANCE_YOUR_CALM))
            raise ConnectionLost("the client sends far too much")
        self._received, self._since = 0, now

    # Answers

    def send(self, stream: RpcStream, message: bytes) -> None:
        """Send one message of a stream, as soon as flow control allows it. Raises: ConnectionLost."""
        self._writer.send(stream, message)
        self._received = 0

    def answer(self, stream: RpcStream, message: bytes) -> None:
        """Send the one message of a stream and its end. Raises: ConnectionLost."""
        self._writer.answer(stream, message)
        self._received = 0
        self._forget(stream.number)

    def end(self, stream: RpcStream, code: StatusCode, details: str = "") -> None:
        """End a stream with a status. Raises: ConnectionLost."""
        self._writer.end(stream, code, details)
        self._forget(stream.number)

    def refuse(self, stream: RpcStream, code: StatusCode, details: str) -> None:
        """End a stream with a status, in the thread that reads: it does not wait. Raises: ConnectionLost."""
        self._writer.refuse(stream, code, details)
        self._forget(stream.number)

    def leave(self) -> None:
        """Ask the client to send no new requests on this connection; requests that have begun go on."""
        with self._reading:
            self._is_leaving = True
            try:
                self._writer.reply(frames.go_away(self._last, frames.NO_ERROR))
            except ConnectionLost:
                self.abandon()

    def abandon(self) -> None:
        """End the connection and every call on it. The thread that reads it next finds the end, and closes it."""
        self._writer.abandon()
        for number in tuple(self._streams):
            self._forget(number)

    def close(self) -> None:
        """End the connection and close its socket, whose descriptor may then be reused."""
        self.abandon()
        self._sock.close()

    def _forget(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.body = bytearray()  # the stream may still be in a queue
            stream.call.over()

    @property
    def is_unused(self) -> bool:
        """Return whether no request is open."""
        return not self._streams

    # The methods below process frames, in the order in which they come, and raise ValueError if HTTP/2 forbids one.

    def _complete(self) -> list[RpcStream]:
        """Return the requests that the buffer completes. Raises: ConnectionLost."""
        if not self._has_preface:
            size = len(frames.PREFACE)
            if not frames.PREFACE.startswith(self._buffer[:size]):
                raise ValueError("the connection does not begin with the preface")
            if len(self._buffer) < size:
                return []
            del self._buffer[:size]
            self._has_preface = True
        before = len(self._buffer)
        found = frames.whole_frames(self._buffer)
        self._count(len(found) + (before - len(self._buffer) >> 10))
        return [stream for frame in found if (stream := self._process(frame)) is not None]

    def _process(self, frame: Http2Frame) -> RpcStream | None:
        """Process a frame, and return the request that it completes, if any. Raises: ConnectionLost."""
        if self._block is not None:
            return self._continued(self._block, frame)
        kind, flags, number, payload = frame
        if kind == WINDOW_UPDATE:
            more, stream = frames.number_of(payload), self._streams.get(number)
            if stream is not None or not number:
                self._writer.widen(stream, more)
        elif kind == HEADERS:
            block = frames.content(kind, flags, payload)
            if flags & END_HEADERS:
                return self._headers(flags, number, block)
            self._block = flags, number, bytearray(block)
        elif kind == DATA:
            return self._data(flags, number, payload)
        elif kind == frames.PING:
            self._ping(flags, number, payload)
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._writer.set(frames.settings_of(payload), tuple(self._streams.values()))
            self._writer.reply(frames.frame(frames.SETTINGS, frames.ACK, 0))
        elif kind == frames.RST_STREAM:
            frames.number_of(payload)
            self._forget(number)
        elif kind == frames.CONTINUATION:
            raise ValueError("header fields that are continued without a beginning")
        elif kind == frames.PUSH_PROMISE:
            raise ValueError("a client can't push")
        return None

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != frames.PING_BYTES or number:
            raise ValueError("a ping does not have eight bytes, or is of a stream")
        if not flags & frames.ACK:
            self._writer.reply(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _continued(self, begun: tuple[int, int, bytearray], frame: Http2Frame) -> RpcStream | None:
        """Process a frame that has to continue the header fields of the frame before it."""
        first_flags, first_number, block = begun
        kind, flags, number, payload = frame
        if kind != frames.CONTINUATION or number != first_number:
            raise ValueError("header fields that are interrupted")
        block += payload
        if len(block) > _BLOCK_BYTES:
            raise ValueError("header fields that are too long")
        if not flags & END_HEADERS:
            return None
        self._block = None
        return self._headers(first_flags, number, bytes(block))

    def _headers(self, flags: int, number: int, block: bytes) -> RpcStream | None:
        """Begin a stream, or end one with its trailers, and return it if it is complete."""
        fields, is_end = dict(self._decoder.decode(block)), flags & END_STREAM
        stream = self._streams.get(number)
        if stream is not None:
            if not is_end or stream.is_complete:
                raise ValueError("header fields within a request, or after it")
            return stream.completed()
        if number <= self._last or not number % 2:
            raise ValueError("a stream with the number of an old stream, or with an even number")
        self._last = number
        if self._is_leaving or len(self._streams) >= STREAMS:
            self._writer.reply(frames.number_frame(frames.RST_STREAM, number, frames.REFUSED_STREAM))
            return None
        stream = self._streams[number] = RpcStream(number, fields, self._writer.stream_window)
        return stream.completed() if is_end else None

    def _data(self, flags: int, number: int, payload: bytes) -> RpcStream | None:
        if not number or number > self._last:
            raise ValueError("data for a stream that has not begun")
        self._unacknowledged += len(payload)
        if self._unacknowledged > REQUEST_BYTES // 2:
            self._writer.reply(frames.number_frame(WINDOW_UPDATE, 0, self._unacknowledged))
            self._unacknowledged = 0
        stream = self._streams.get(number)
        if stream is None:
            return None  # the stream was cancelled or refused
        stream.body += frames.content(DATA, flags, payload)
        size = len(stream.body)
        if stream.is_complete or size > REQUEST_BYTES:
            raise ValueError("data after the end of a request, or more than was allowed")
        if size > _LARGE_BYTES and self._held() > _HELD_BYTES:
            raise ValueError("too many large requests at the same time")
        return stream.completed() if flags & END_STREAM else None

    def _held(self) -> int:
        """Return how many bytes the requests that are open have together."""
        return sum(len(stream.body) for stream in tuple(self._streams.values()))
