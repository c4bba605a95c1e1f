"""Connection: one connection to the API server, which is kept open and carries one request after the other.

In: an address, a TLS context. Out: answers, read within bounds. Every request is one write of head and body. Redirects
are not followed, and nothing is sent again.
Source: RFC 9112, sections 3, 6.2 and 9.3.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.kube.transport.bounds import BoundedReader, BrokenError, ResponseLimits
from dra_driver.kube.transport.http_response import HttpResponse

# A dead peer (node gone, connection forgotten by a firewall) is noticed within about a minute, even by a silent watch.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 45_000),
)
_NOT_IN_A_TARGET = re.compile(r"[^\x21-\x7e]")
_NOT_IN_A_FIELD = re.compile(r"[^\x20-\x7e\t]")
_WITH_A_LENGTH = ("POST", "PUT", "PATCH")
_ENDED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)  # the other side has ended the connection
_MIN_S = 0.001


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
        self.sock.settimeout(0)  # the reader does the waiting
        self._reader = BoundedReader(self.sock)
        self._answer: HttpResponse | None = None

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, until: float
    ) -> HttpResponse:
        """Send a request, and return the answer once its head was read.

        All of the answer has to arrive by `until`, a time of `time.monotonic`.

        Raises: ValueError for a target or a field that HTTP does not allow; BrokenError, TooLargeError,
        TimeoutError, OSError.
        """
        message = _head(method, target, (("Host", self._address.field), *headers.items()), body)
        self._reader.bounds = ResponseLimits(until)
        try:
            self._reader.send(message + body if body else message)
        except _ENDED as err:
            self._answer = self._early_answer(err)
        else:
            self._answer = HttpResponse(self._reader, has_body=method != "HEAD")
        return self._answer

    def _early_answer(self, err: OSError) -> HttpResponse:
        """Return what the server answered before it stopped reading the request. Raises: BrokenError."""
        try:
            answer = HttpResponse(self._reader)
        except OSError:
            raise BrokenError("the connection ended within the request") from err
        answer.ends_connection = True
        return answer

    @property
    def is_ready(self) -> bool:
        """Return whether the last answer was read to its end and another request may follow."""
        return self._answer is not None and self._answer.may_be_followed

    def is_quiet(self) -> bool:
        """Return whether the other side has neither ended the connection nor sent unsolicited bytes."""
        return self._reader.is_quiet()

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.sock.close()


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
    """Return the error to raise for an error of the TLS handshake."""
    if isinstance(err, TimeoutError) or not isinstance(err, OSError):
        return err
    is_refusal = isinstance(err, ssl.SSLError) and not isinstance(err, _ENDED)
    return CertificateError(str(err)) if is_refusal else ConnectError(str(err))


def _head(method: str, target: str, fields: tuple[tuple[str, str], ...], body: bytes | None) -> bytes:
    """Return the head of a request. Raises: ValueError."""
    if _NOT_IN_A_TARGET.search(target):
        raise ValueError("a request's path can't contain blanks, control characters or letters outside ASCII")
    length = f"Content-Length: {len(body or b'')}\r\n" if body is not None or method in _WITH_A_LENGTH else ""
    return f"{method} {target} HTTP/1.1\r\n{_lines(fields)}{length}\r\n".encode("ascii")


@functools.lru_cache(maxsize=4)  # most requests have the same fields
def _lines(fields: tuple[tuple[str, str], ...]) -> str:
    """Return the lines of header fields. Raises: ValueError."""
    for name, value in fields:
        if _NOT_IN_A_FIELD.search(value):
            raise ValueError(f"the header field {name} can't contain control characters or letters outside ASCII")
    return "".join(f"{name}: {value}\r\n" for name, value in fields)
