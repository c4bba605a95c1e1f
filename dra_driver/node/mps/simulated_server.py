"""A simulated nvidia-cuda-mps-server: it serves clients of a simulated control daemon, and shares no GPU.

The daemon runs it as a separate program with only the standard library. Commands come in on descriptor 3; on descriptor
4 the server reports that it listens. If its control daemon ends, it keeps serving the clients that it has.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import suppress


class Server:
    """One server, from its socket to its last client."""

    def __init__(self, pipe: str) -> None:
        self._path = f"{pipe}/server-{os.getpid()}"
        self._control: socket.socket | None = socket.socket(fileno=3)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(self._path)
        os.chmod(self._path, 0o666)  # noqa: PTH101, S103 - clients of any user
        self._listening.listen(64)
        self._clients: dict[socket.socket, int] = {}  # the pid of each client, by its connection
        self._limits = "100.0 0"
        self._is_draining = False

    def serve(self) -> None:
        """Serve until the daemon orders the end, or is gone, and no client is left."""
        os.write(4, b"!")
        os.close(4)
        while self._clients or (self._control and not self._is_draining):
            sources = [self._listening, *self._clients, *([self._control] if self._control else [])]
            for ready in select.select(sources, [], [])[0]:
                if ready is self._listening:
                    self._accept_client()
                elif ready is self._control:
                    self._execute(ready)
                else:
                    self._handle(ready)
        with suppress(OSError):  # a new control daemon may have cleared the folder
            os.unlink(self._path)  # noqa: PTH108

    def _accept_client(self) -> None:
        client, _ = self._listening.accept()
        pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self._clients[client] = pid
        client.sendall(f"LIMITS {self._limits}\n".encode())

    def _execute(self, control: socket.socket) -> None:
        """Execute a command of the control daemon; an empty line means that the daemon has ended."""
        word, _, rest = _line(control).partition(" ")
        if not word:
            self._control = None
            return
        if word == "LIMIT":
            self._limits = rest
        self._is_draining |= word in {"DRAIN", "STOP"}
        for client in [
            one for one, pid in self._clients.items() if word == "STOP" or (word, rest) == ("DROP", str(pid))
        ]:
            self._drop(client)
        pids = " ".join(map(str, self._clients.values()))
        control.sendall(f"{pids if word == 'LIST' else 'OK'}\n".encode())

    def _handle(self, client: socket.socket) -> None:
        if client not in self._clients:
            return  # it was dropped while another connection was handled
        try:
            message = client.recv(256)
            if message:
                client.sendall(b"PONG " + message)
                return
        except OSError:
            pass
        self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        del self._clients[client]
        client.close()


def _line(connection: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\n") and (part := connection.recv(1)):
        data += part
    return data.decode(errors="replace").strip()


if __name__ == "__main__":
    Server(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).serve()
