"""A few small HTTP pages for probes and scrapes, served by the standard library's TCP server within plain bounds.

In: an address, and a callable for each page. Out: answers, one per connection, each in a thread of its own. At most
`MAX_CONNECTIONS` clients may keep the server waiting; one more replaces the oldest. A head and an answer each have a
deadline, and a head a limit of bytes. So clients that send nothing, or a byte a minute, can't keep a probe from its
answer. A page that is slow to render is rendered at most a few times a second, once for all clients that wait for it.

The head of a request is read here: `http.server` loads 6 MiB (TLS, mail) on a node that has no GPU and may have 25.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, cast

from dra_driver.base.telemetry.logs import NEEDED, PartThread

# Probe pages: the answers to /healthz, /readyz and /metrics, for any server that has these pages.

_HEALTH = "/healthz"


@dataclass(frozen=True, slots=True)
class PageResponse:
    """The answer of a page."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class _QuickPages(Mapping[str, PageResponse]):
    """The pages that never wait for anything, each as it is at the moment when it is taken."""

    def __getitem__(self, path: str) -> PageResponse:
        if path != _HEALTH:
            raise KeyError(path)
        return _page_of(NEEDED.faults())

    def __iter__(self) -> Iterator[str]:
        return iter((_HEALTH,))

    def __len__(self) -> int:
        return 1


def _page_of(reasons: tuple[str, ...]) -> PageResponse:
    return PageResponse(503 if reasons else 200, ("\n".join(reasons) or "ok").encode() + b"\n")


QUICK_PAGES = _QuickPages()
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


def probe_pages(
    *, metrics: Callable[[], bytes], readiness: Callable[[], tuple[str, ...]]
) -> Mapping[str, Callable[[], PageResponse]]:
    """Return the pages that are made on request. The agent is ready if `readiness` returns no reasons."""
    return {"/readyz": lambda: _page_of(readiness()), "/metrics": lambda: PageResponse(200, metrics(), _METRICS)}


log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64  # whose clients keep the server waiting
MAX_PAGE_CLIENTS = 16  # that wait for the same page
MAX_HEAD = 8192  # bytes
CONNECTION_SECONDS = 5.0  # the time limit for the whole request, and again for the answer
_ENDS = (b"\r\n\r\n", b"\n\n")
_BACKLOG = 4096  # the kernel reduces it to its own limit; a client that does not fit in retries only after a second
_FAULT_SECONDS = 0.05  # the pause after a connection could not be accepted because a resource ran out
_RENDER_SECONDS = 0.05  # the least time between two renderings of the same page
_STOP_SECONDS = 0.25  # how often the serving thread checks whether it is to stop
_BUSY = PageResponse(503, b"too many clients wait for this page\n")

Page = Callable[[], PageResponse]


class PageAccess(Protocol):
    """Decides who may see the pages that are rendered on request."""

    def refusal(self, token: str) -> PageResponse | None:
        """Return the answer to a client with this bearer token, or None if it may see the page. This may take time."""


class SocketEncryption(Protocol):
    """Turns an accepted connection into an encrypted one."""

    def secure(self, sock: socket.socket) -> socket.socket:
        """Return a socket that encrypts. Raises: OSError if that is not possible now."""


class Port:
    """A server of `pages` by path. Those in `quick` must never wait for anything; all others need `access`."""

    def __init__(
        self,
        address: tuple[str, int],
        pages: Mapping[str, Page],
        *,
        quick: Mapping[str, PageResponse],
        connection_s: float = CONNECTION_SECONDS,
        encryption: SocketEncryption | None = None,
        access: PageAccess | None = None,
    ) -> None:
        """Listen. Raises: OSError."""
        shared = {path: _SharedPage(page, access) for path, page in pages.items()}
        self._server = _PageServer(_listen(address), shared, quick, connection_s, encryption)
        self.number = int(self._server.socket.getsockname()[1])
        self.address = f"[{address[0]}]:{self.number}" if ":" in address[0] else f"{address[0]}:{self.number}"
        self._thread = PartThread("status", lambda _: self._server.serve_forever(_STOP_SECONDS))

    def start(self) -> None:
        """Start answering. Raises: NodeError("node.thread")."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._thread.release()
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _SharedPage:
    """A page that takes time to make: rendered for one client at a time, and for all that waited meanwhile."""

    def __init__(self, page: Page, access: PageAccess | None) -> None:
        self._page, self._access = page, access
        self._room = threading.BoundedSemaphore(MAX_PAGE_CLIENTS)
        self._mutex = threading.Lock()
        self._began = float("-inf")
        self._answer = _BUSY

    def answer(self, token: str) -> PageResponse:
        """Return the page, or why this client does not get it."""
        if not self._room.acquire(blocking=False):
            return _BUSY
        try:
            refusal = self._access.refusal(token) if self._access is not None else None
            return refusal or self._rendered()
        except Exception:
            log.exception("status page failed")
            return PageResponse(500, b"internal error\n")
        finally:
            self._room.release()

    def _rendered(self) -> PageResponse:
        """Return the page as it is now, or was at any time since this was called."""
        called = time.monotonic()
        with self._mutex:
            if self._began <= called:
                time.sleep(max(0.0, self._began + _RENDER_SECONDS - time.monotonic()))
                self._began = time.monotonic()
                self._answer = PageResponse(500, b"internal error\n")  # for those who wait, if the next line fails
                self._answer = self._page()
            return self._answer


class _PageServer(socketserver.ThreadingTCPServer):
    """The standard library's server on a listening socket, with a bounded number of connections."""

    daemon_threads, block_on_close = True, False

    def __init__(
        self,
        listening: socket.socket,
        pages: Mapping[str, _SharedPage],
        quick: Mapping[str, PageResponse],
        connection_s: float,
        encryption: SocketEncryption | None,
    ) -> None:
        super().__init__(("", 0), _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.connection_s = connection_s
        self._pages, self._quick, self._encryption = pages, quick, encryption
        self._mutex = threading.Lock()
        self._waiting: dict[socket.socket, None] = {}  # those whose client the server waits for, the oldest first

    def answer(self, path: str, token: str, sock: socket.socket) -> PageResponse:
        """Return the answer to a request that came on a socket, which is not cut while its page is made."""
        if path in self._quick:
            return self._quick[path]
        if path not in self._pages:
            return PageResponse(404, f"try {', '.join([*self._pages, *self._quick])}\n".encode())
        with self._mutex:
            self._waiting.pop(sock, None)
        answer = self._pages[path].answer(token)
        with self._mutex:
            self._waiting[sock] = None
        return answer

    def get_request(self) -> tuple[socket.socket, object]:
        """Return the next connection, encrypted if that is wanted. Raises: OSError."""
        try:
            sock, address = super().get_request()
        except OSError:
            self._cut_oldest(MAX_CONNECTIONS)
            time.sleep(_FAULT_SECONDS)
            raise
        try:
            return (self._encryption.secure(sock) if self._encryption is not None else sock), address
        except OSError:
            sock.close()
            raise

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Answer in a new thread, or in this one if there can't be another."""
        self._cut_oldest(MAX_CONNECTIONS - 1)
        with self._mutex:
            self._waiting[cast("socket.socket", request)] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            socketserver.TCPServer.process_request(self, request, client_address)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection."""
        with self._mutex:
            self._waiting.pop(cast("socket.socket", request), None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Free the port, and cut all connections that wait for their clients."""
        super().server_close()
        self._cut_oldest(0)

    def handle_error(self, request: object, client_address: object) -> None:
        """Do nothing: the client is gone, or does not speak TLS."""

    def _cut_oldest(self, left: int) -> None:
        """End the connections that have waited longest for their clients, until only `left` of them are left."""
        with self._mutex:
            while len(self._waiting) > left:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                with contextlib.suppress(OSError):
                    # SSLSocket.shutdown would drop the TLS state while its thread uses it: shut the plain one down.
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)


class _Connection(socketserver.BaseRequestHandler):
    """One connection, with one request."""

    server: _PageServer
    request: socket.socket

    def handle(self) -> None:
        """Read the head of a request, and answer it. Raises: OSError if the client is gone or too slow."""
        head = self._head()
        words = head.split(b"\n", 1)[0].split()
        if len(head) >= MAX_HEAD:
            answer = PageResponse(431, b"the request is too long\n")
        elif len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            answer = PageResponse(400, b"this port speaks HTTP/1.1\n")
        elif words[0] not in (b"GET", b"HEAD"):
            answer = PageResponse(405, b"GET is expected\n")
        else:
            path = words[1].partition(b"?")[0].decode("latin-1")
            answer = self.server.answer(path, _token_of(head), self.request)
        self._send(answer, is_whole=words[:1] != [b"HEAD"])

    def _head(self) -> bytes:
        """Return what the client sends until an empty line, or `MAX_HEAD` bytes of it."""
        head, until = b"", time.monotonic() + self.server.connection_s
        while len(head) < MAX_HEAD and not any(end in head for end in _ENDS):
            self.request.settimeout(max(0.001, until - time.monotonic()))
            piece = self.request.recv(MAX_HEAD - len(head))
            if not piece:
                raise ConnectionResetError("gone")
            head += piece
        return head

    def _send(self, answer: PageResponse, *, is_whole: bool) -> None:
        head = (
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\nContent-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
        )
        self.request.settimeout(self.server.connection_s)
        self.request.sendall(head.encode() + (answer.body if is_whole else b""))


def _token_of(head: bytes) -> str:
    """Return the bearer token in the head of a request; "" if it has none."""
    for line in head.split(b"\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""
    return ""


def _listen(address: tuple[str, int]) -> socket.socket:
    """Return a listening socket, without a host on both IP versions, so that the kubelet's probes reach it."""
    is_for_both = not address[0] and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_for_both or ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=is_for_both)
