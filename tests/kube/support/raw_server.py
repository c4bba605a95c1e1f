"""A server that sends arbitrary bytes, by one script for each request."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class RawServer:
    """Reads requests without a body and answers each with the pieces of the next script, or of the last one.

    `connections` counts the connections; `sent` counts the bytes that were sent on all of them.
    """

    def __init__(self, *scripts: Callable[[], Iterable[bytes]]) -> None:
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = self.sent = 0
        self.stopping = threading.Event()

    def __enter__(self) -> RawServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while connection.recv(65536):
                script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
                for piece in script():
                    if self.stopping.is_set():
                        return
                    connection.sendall(piece)
                    self.sent += len(piece)
