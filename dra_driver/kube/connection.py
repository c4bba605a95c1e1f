"""One connection to the API server, which is kept open and carries one request after the other.

In: an address, a TLS context. Out: answers, each limited in size and time, whatever the other side sends: the deadline
and the limits are those of the whole answer, with interim answers, head, chunks and trailers. The standard library's
client writes requests and reads answers. Redirects are not followed, and nothing is sent again. No answer is
decompressed, because no compression is asked for. An answer that two readers could take to end at different places is
refused: one with two lengths, or with a length beside a transfer coding. Large answers are read and parsed one at a
time, so that many of them together don't fill the memory of the process.
Source: RFC 9112, section 6.3.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The largest request that the API server accepts is 3 MiB, and etcd's is 1.5 MiB; a page of a list that is larger than
# this is requested again with fewer objects.
MAX_BYTES = 8 << 20
_HEAD_BYTES = 256 * 1024
_RAW_BYTES = MAX_BYTES + MAX_BYTES // 4  # chunked transfer adds a few bytes to each chunk of some KiB
LARGE_BYTES = 256 * 1024
_one_at_a_time = threading.Lock()
_PIECE_BYTES = 256 * 1024
_SWITCHING = 101
# A dead peer (node gone, connection forgotten by a firewall) is noticed within about a minute, even by a silent watch.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 45_000),
)
_ENDED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)  # the other side has ended the connection
_MIN_S = 0.001


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


class LargeTurn:
    """The turn of one request; most never take it. `until` is a time of `time.monotonic`. For one thread."""

    __slots__ = ("_is_held", "until")

    def __init__(self, until: float) -> None:
        self.until, self._is_held = until, False

    def take(self) -> None:
        """Wait for the turn, unless it is held. Raises: TimeoutError."""
        if self._is_held:
            return
        if not _one_at_a_time.acquire(timeout=max(0.0, self.until - time.monotonic())):
            raise TimeoutError("another large answer is being read")
        self._is_held = True

    def end(self) -> None:
        """End the turn, if it is held, so that the next request may take it."""
        if self._is_held:
            self._is_held = False
            _one_at_a_time.release()


class _Input(io.BufferedReader):
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


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is. `name` is the name that its certificate must carry, "" for plain HTTP."""

    host: str
    port: int
    field: str  # the value of the header field Host
    name: str = ""


class ConnectError(OSError):
    """No connection could be made, so nothing was sent."""


class CertificateError(ConnectError):
    """The TLS handshake failed, so nothing was sent."""


class Connection:
    """A connected socket. `generation` is counted by the owner, which does not use connections of older ones again."""

    def __init__(
        self, address: Address, context: ssl.SSLContext | None, seconds: float, *, generation: int = 0
    ) -> None:
        """Connect. Raises: CertificateError, ConnectError, TimeoutError, ValueError for an invalid host name."""
        self._address, self.generation = address, generation
        self.sock = _connected(address, context, seconds)
        self._client = http.client.HTTPConnection(address.host, address.port)
        self._client.sock = self.sock
        self._answer: HttpResponse | None = None

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, until: float
    ) -> HttpResponse:
        """Send a request, and return the answer once its head was read.

        All of the answer has to arrive by `until`, a time of `time.monotonic`.

        Raises: ValueError for a target or a field that HTTP does not allow; BrokenError, TooLargeError,
        TimeoutError, OSError.
        """
        limits = ResponseLimits(until)
        self._client.response_class = partial(_response, limits)  # type: ignore[assignment]
        self.sock.settimeout(limits.seconds_left())
        ended: OSError | None = None
        try:
            self._client.request(method, target, body=body, headers={"Host": self._address.field, **headers})
        except http.client.InvalidURL as error:
            raise ValueError(str(error)) from error
        except _ENDED as error:  # the server may have answered before it stopped reading
            ended = error
        self._answer = self._read(limits)
        self._answer.ends_connection |= ended is not None
        return self._answer

    def _read(self, limits: ResponseLimits) -> HttpResponse:
        """Return the answer, whose head is read here. Raises: BrokenError, TimeoutError, OSError."""
        try:
            return HttpResponse(cast("LimitedResponse", self._client.getresponse()), limits)
        except http.client.RemoteDisconnected as error:
            raise BrokenError("the connection was closed") from error
        except http.client.HTTPException as error:
            raise BrokenError(f"the answer is not HTTP/1.1: {error!r}") from error

    @property
    def is_ready(self) -> bool:
        """Return whether the last answer was read to its end and another request may follow."""
        return self._answer is not None and self._answer.may_be_followed

    def is_quiet(self) -> bool:
        """Return whether the other side has neither ended the connection nor sent unsolicited bytes."""
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return False
        arrived = select.poll()
        arrived.register(self.sock, select.POLLIN)
        return not arrived.poll(0)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.sock.close()


def _response(
    limits: ResponseLimits, sock: socket.socket, _debug: int = 0, method: str | None = None
) -> LimitedResponse:
    return LimitedResponse(sock, limits, method)


def _connected(address: Address, context: ssl.SSLContext | None, seconds: float) -> socket.socket:
    until = time.monotonic() + seconds
    try:
        sock = _dialled(address, until)
    except TimeoutError:
        raise
    except OSError as err:
        raise ConnectError(str(err)) from err
    try:
        for option in _SOCKET_OPTIONS:
            sock.setsockopt(*option)
        if context is None:
            return sock
        sock.settimeout(max(_MIN_S, until - time.monotonic()))
        return context.wrap_socket(sock, server_hostname=address.name)
    except BaseException as err:
        sock.close()
        raise _of_handshake(err) from err


def _dialled(address: Address, until: float) -> socket.socket:
    """Connect to one of a host's addresses; each may take its share of the time left. Raises: OSError, ValueError."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    fault = OSError(f"{address.host} has no address")
    for left, (family, kind, protocol, _, where) in zip(range(len(found), 0, -1), found, strict=True):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(_MIN_S, (until - time.monotonic()) / left))
            sock.connect(where)
        except OSError as err:
            sock.close()
            fault = err
        else:
            return sock
    raise fault


def _of_handshake(err: BaseException) -> BaseException:
    if isinstance(err, TimeoutError) or not isinstance(err, OSError):
        return err
    is_refusal = isinstance(err, ssl.SSLError) and not isinstance(err, _ENDED)
    return CertificateError(str(err)) if is_refusal else ConnectError(str(err))
