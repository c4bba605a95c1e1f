"""Connection: one connection to the API server, which is kept open and carries one request after the other.

In: an address, a TLS context. Out: answers, read within bounds. The standard library's client writes requests and reads
answers. Redirects are not followed, and nothing is sent again.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

from dra_driver.kube.transport.bounds import BrokenError, ResponseLimits
from dra_driver.kube.transport.http_response import HttpResponse, LimitedResponse

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
    """Return the error to raise for an error of the TLS handshake."""
    if isinstance(err, TimeoutError) or not isinstance(err, OSError):
        return err
    is_refusal = isinstance(err, ssl.SSLError) and not isinstance(err, _ENDED)
    return CertificateError(str(err)) if is_refusal else ConnectError(str(err))
