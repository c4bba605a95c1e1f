"""A proxy between a browser and a console that stops in the middle of some answers, as a slow network does.

In: the paths of the answers to stop in. Out: the header and the first byte of such an answer; everything else passes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_END_OF_HEAD = b"\r\n\r\n"


class SlowProxy:
    """An HTTP proxy that handles one request on each connection."""

    def __init__(self) -> None:
        self.halved: set[str] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                browser, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(browser,), daemon=True).start()

    def _serve(self, browser: socket.socket) -> None:
        with browser:
            head, body = _head_of(browser)
            method, _, target = head.split(b"\r\n")[0].decode().rpartition(" ")[0].partition(" ")
            url = urlsplit(target)
            if url.hostname != "127.0.0.1":
                return  # Chromium also asks hosts of its vendor
            path = url.path + (f"?{url.query}" if url.query else "")
            kept = [line for line in head.split(b"\r\n")[1:] if not line.lower().startswith((b"connection", b"proxy-"))]
            sent = b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), *kept, b"connection: close"])
            with socket.create_connection((url.hostname, url.port)) as console:
                console.sendall(sent + _END_OF_HEAD + body)
                _pass_on(console, browser, is_halved=url.path in self.halved)

    def close(self) -> None:
        """Accept no more connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def _head_of(browser: socket.socket) -> tuple[bytes, bytes]:
    """Return a request's line with its headers, and its body."""
    found = b""
    while _END_OF_HEAD not in found:
        chunk = browser.recv(1 << 16)
        if not chunk:
            return b"", b""
        found += chunk
    head, _, body = found.partition(_END_OF_HEAD)
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += browser.recv(1 << 16)
    return head, body


def _pass_on(console: socket.socket, browser: socket.socket, is_halved: bool) -> None:
    """Pass an answer on; of a halved one only the headers and a byte, and then wait until the browser goes away."""
    found = b""
    try:
        while chunk := console.recv(1 << 16):
            found += chunk
            if not is_halved:
                browser.sendall(chunk)
        if is_halved:
            head, _, body = found.partition(_END_OF_HEAD)
            browser.sendall(head + _END_OF_HEAD + body[:1])
            browser.recv(1)
    except OSError:
        return


@contextmanager
def slow_proxy() -> Iterator[SlowProxy]:
    """Run a proxy, and end it afterwards."""
    proxy = SlowProxy()
    try:
        yield proxy
    finally:
        proxy.close()
