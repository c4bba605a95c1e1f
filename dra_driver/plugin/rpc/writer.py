"""Answer writer: writes the answers of all threads to one client, as far as its flow control allows.

In: messages and statuses of streams; the windows that the client sets. Out: frames on the socket. If a client does not
read what it is sent, its connection is closed.
Source: RFC 9113, sections 5.2 and 8.1; gRPC over HTTP2, "Responses".
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterable
from urllib.parse import quote

from dra_driver.plugin.rpc import frames
from dra_driver.plugin.rpc.call import StatusCode
from dra_driver.plugin.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS
from dra_driver.plugin.rpc.header_fields import literal
from dra_driver.plugin.rpc.stream import RpcStream, framed

SEND_SECONDS = 10
_MAX_FRAME_BYTES = 64 * 1024
_REPLIES_BYTES = 64 * 1024  # the most that may wait while a thread writes an answer
_DETAILS_CHARS = 4096
_UNQUOTED = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"  # with letters and digits, all printable characters except "%"
_FIRST = b"\x88" + literal(b"content-type", b"application/grpc")  # 0x88: status 200
_OK = literal(b"grpc-status", b"0")


class ConnectionLost(Exception):
    """The client is gone, or has broken the rules."""


class ResponseWriter:
    """The writing side of a connection. Any thread may call any method."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self._writing = threading.Lock()
        self._mutex = threading.Lock()  # guards everything below, and the windows of streams
        self._changed = threading.Condition(self._mutex)
        self._waiting = 0  # how many threads wait until the client allows more
        self._window = self.stream_window = frames.WINDOW_BYTES
        self._frame_bytes = frames.FRAME_BYTES
        self._replies = b""  # frames that the next write takes along
        self._is_over = False

    def write(self, data: bytes) -> None:
        """Write whole frames, and wait until the client reads. Raises: ConnectionLost."""
        try:
            while data or self._replies:
                with self._writing:
                    self._sock.sendall(self._taken_replies() + data if self._replies else data)
                data = b""
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def reply(self, data: bytes) -> None:
        """Write whole frames in the thread that reads, which must not wait until the client reads.

        If another thread writes now, it takes them along. Raises: ConnectionLost if the client does not read.
        """
        with self._mutex:
            self._replies += data
            if len(self._replies) > _REPLIES_BYTES:
                raise ConnectionLost("the client does not read")
        while self._replies and self._writing.acquire(blocking=False):
            try:
                replies = self._taken_replies()
                if self._sock.send(replies, socket.MSG_DONTWAIT) < len(replies):
                    raise ConnectionLost("the client does not read")
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            finally:
                self._writing.release()

    def send(self, stream: RpcStream, message: bytes) -> None:
        """Send one message of a stream, as soon as flow control allows it. Raises: ConnectionLost."""
        head = b"" if stream.has_head else _head(stream)
        stream.has_head = True
        self._write_data(stream, head, framed(message))

    def answer(self, stream: RpcStream, message: bytes) -> None:
        """Send the one message of a stream and its end, as soon as flow control allows it. Raises: ConnectionLost."""
        self._write_data(stream, _head(stream), framed(message), _last(stream, _OK))

    def end(self, stream: RpcStream, code: StatusCode, details: str = "") -> None:
        """End a stream with a status. Raises: ConnectionLost."""
        self.write(_end(stream, code, details))

    def refuse(self, stream: RpcStream, code: StatusCode, details: str) -> None:
        """End a stream as `end` does, in the thread that reads. Raises: as `reply`."""
        self.reply(_end(stream, code, details))

    def set(self, values: Iterable[tuple[int, int]], streams: Iterable[RpcStream]) -> None:
        """Apply the settings of the client, also to the `streams` that are open. Raises: ValueError."""
        with self._mutex:
            for number, value in values:
                if number == frames.INITIAL_WINDOW_SIZE:
                    if value > frames.MAX_WINDOW:
                        raise ValueError("a window that is too large")
                    for stream in streams:
                        stream.window += value - self.stream_window
                    self.stream_window = value
                elif number == frames.MAX_FRAME_SIZE:
                    self._frame_bytes = min(max(value, frames.FRAME_BYTES), _MAX_FRAME_BYTES)
            self._wake()

    def widen(self, stream: RpcStream | None, more: int) -> None:
        """Widen the window of a stream, or with None that of the connection, by `more` bytes. Raises: ValueError."""
        with self._mutex:
            if stream is None:
                window = self._window = self._window + more
            else:
                window = stream.window = stream.window + more
            if not more or window > frames.MAX_WINDOW:
                raise ValueError("a window that is widened by nothing, or by too much")
            self._wake()

    def abandon(self) -> None:
        """Wake the threads that wait to write, and shut the socket down, so that its reader finds the end."""
        with self._mutex:
            self._is_over = True
            self._wake()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _write_data(self, stream: RpcStream, head: bytes, data: bytes, tail: bytes = b"") -> None:
        """Write data between other frames: all together, or in parts where the client does not allow all at once."""
        place, end, number = 0, len(data), stream.number
        if end <= self._frame_bytes and self._take_windows(stream, end):
            self.write(head + frames.frame(DATA, 0, number, data) + tail)
            return
        while place < end:
            size, maximum = self._await_windows(stream, end - place), self._frame_bytes
            if not size:
                return
            pieces = (data[at : min(at + maximum, place + size)] for at in range(place, place + size, maximum))
            part = b"".join(frames.frame(DATA, 0, number, piece) for piece in pieces)
            place += size
            self.write(head + part + (tail if place == end else b""))
            head = b""

    def _await_windows(self, stream: RpcStream, wanted: int) -> int:
        """Return how many of `wanted` bytes may be sent now; 0 if they are no longer wanted. Raises: ConnectionLost."""
        with self._mutex:
            self._waiting += 1
            is_free = self._changed.wait_for(lambda: self._is_free(stream), SEND_SECONDS)
            self._waiting -= 1
            if not is_free or self._is_over:
                raise ConnectionLost("the client's flow control does not allow an answer to be sent")
            size = 0 if stream.call.is_over else min(wanted, self._window, stream.window)
            self._window -= size
            stream.window -= size
            return size

    def _take_windows(self, stream: RpcStream, size: int) -> bool:
        """Take `size` bytes of both windows if they are that large now, and return whether they are."""
        with self._mutex:
            if self._is_over or stream.call.is_over or size > self._window or size > stream.window:
                return False
            self._window -= size
            stream.window -= size
            return True

    def _taken_replies(self) -> bytes:
        with self._mutex:
            replies, self._replies = self._replies, b""
            return replies

    def _wake(self) -> None:
        """Wake the threads that wait; the caller has the lock."""
        if self._waiting:
            self._changed.notify_all()

    def _is_free(self, stream: RpcStream) -> bool:
        """Return whether a waiting thread may go on: something may be sent, or nothing need be sent any more."""
        return self._is_over or stream.call.is_over or min(self._window, stream.window) > 0


def _head(stream: RpcStream) -> bytes:
    """Return the frame that begins an answer."""
    return frames.frame(HEADERS, END_HEADERS, stream.number, _FIRST)


def _end(stream: RpcStream, code: StatusCode, details: str) -> bytes:
    """Return the frame that ends a stream with a status."""
    fields = literal(b"grpc-status", str(int(code)).encode())
    if details:
        fields += literal(b"grpc-message", quote(details[:_DETAILS_CHARS], safe=_UNQUOTED).encode())
    return _last(stream, fields if stream.has_head else _FIRST + fields)


def _last(stream: RpcStream, fields: bytes) -> bytes:
    """Return the frame that ends a stream, with the call's own metadata."""
    for name, value in stream.call.trailers:
        fields += literal(name.encode(), value.encode())
    return frames.frame(HEADERS, END_HEADERS | END_STREAM, stream.number, fields)
