"""LineStream: an HTTP answer that comes line by line and can be closed from another thread at any moment.

In: how to connect. Out: whole lines as bytes. Closing shuts the socket down, which wakes a reader that waits for the
next byte, so no reader stays blocked. A line has a limit of bytes, and a limit of time from its first byte to its last;
the whole stream has an end.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from ssl import SSLError

from dra_driver.kube import answers
from dra_driver.kube.transport.connection import CertificateError, Connection, HttpResponse
from dra_driver.model.errors import ApiError, Retry

_PIECE_BYTES = 64 * 1024
_REFUSAL_BYTES = 64 * 1024
LINE_BYTES = 4 << 20  # the store of an API server takes objects of up to 1.5 MiB in its own, shorter format
HEAD_SECONDS = 30.0  # how long to wait for a stream to begin
LINE_SECONDS = 30.0  # the longest time from the first byte of a line to its last

Connect = Callable[[], tuple[Connection, str, dict[str, str]]]


class LineStream:
    """One streamed GET. `open` and `lines` are for one thread, `close` for any."""

    def __init__(
        self,
        connect: Connect,
        reread_token: Callable[[], bool],
        path: str,
        *,
        max_s: float,
        line_s: float = LINE_SECONDS,
    ) -> None:
        self._connect, self._reread_token, self._path = connect, reread_token, path
        self._max_s, self._line_s = max_s, line_s
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._answer: HttpResponse | None = None
        self._is_closed = False

    def open(self) -> None:
        """Connect, send the request and read the answer's head. Raises: ApiError, also after `close`."""
        answer = self._ask()
        if answer.status == 401 and self._reread_token():
            self._drop()
            answer = self._ask()
        if answer.status != 200:
            raise self._refusal(answer)
        self._answer = answer
        if answer.is_encoded:
            raise answers.bad_answer(f"GET {self._path}: the answer is compressed, which was not asked for", 200)

    def lines(self) -> Iterator[bytes]:
        """Yield each line without its line end, until the server ends the stream or `close` is called.

        Raises: ApiError("api.stream-broken") if the connection fails, is silent for too long, or sends a line
        that does not end.
        """
        if self._answer is None:
            return
        bounds = self._answer.bounds
        over_at = bounds.until = time.monotonic() + self._max_s
        line = bytearray()
        while True:
            with self._translated("stream-broken"):
                piece = self._answer.piece(_PIECE_BYTES)
            if not piece or self._is_closed:
                return
            is_begun = bool(line)
            *ends, rest = piece.split(b"\n")
            for end in ends:
                whole, line = bytes(line + end), bytearray()
                if whole.strip():
                    yield whole
            line += rest
            if len(line) > LINE_BYTES:
                raise ApiError("stream-broken", f"GET {self._path}: a line is too large", retry=Retry.NOW)
            if ends:
                bounds.allow_body()
            if ends or not is_begun:
                bounds.until = min(over_at, time.monotonic() + self._line_s) if line else over_at

    def close(self) -> None:
        """End the stream now. This may be called twice, and before `open`."""
        with self._lock:
            self._is_closed = True
            connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                # SSLSocket.shutdown would drop the TLS state while the reader uses it: shut the plain socket down.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def release(self) -> None:
        """Free the connection; called by the reading thread when it is done."""
        self.close()
        self._drop()

    def _ask(self) -> HttpResponse:
        with self._translated("unreachable"):
            connection, target, headers = self._connect()
            with self._lock:
                self._connection = connection
                if self._is_closed:
                    raise ConnectionAbortedError("closed")
            until = time.monotonic() + min(HEAD_SECONDS, self._max_s)
            return connection.ask("GET", target, headers, None, until)

    def _refusal(self, answer: HttpResponse) -> ApiError:
        with self._translated("unreachable"):
            body = bytearray()
            while len(body) < _REFUSAL_BYTES and (piece := answer.piece(_REFUSAL_BYTES)):
                body += piece
        try:
            decoded = answers.parse(bytes(body))
        except ValueError:
            decoded = None
        retry_after = answer.headers.get("retry-after", "")
        return answers.refusal(answer.status, decoded, retry_after, method="GET", path=self._path)

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _translated(self, code: str) -> Iterator[None]:
        """Turn the connection's errors into ApiErrors."""
        try:
            yield
        except (CertificateError, SSLError) as err:
            raise ApiError("tls", f"GET {self._path}: {err}", retry=Retry.LATER) from err
        except (OSError, ValueError) as err:
            raise ApiError(code, f"GET {self._path}: {err!r}", retry=Retry.NOW) from err
