"""A simulated nvidia-cuda-mps-server: welcomes clients of a simulated control daemon, and shares no GPU.

Run by that daemon as a program of its own, with the standard library only. On descriptor 3 it is told what to do, on
descriptor 4 it says that it listens. Without its control daemon it goes on for the clients it has.
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
        self._clients: dict[socket.socket, int] = {}  # with their pids
        self._limits = "100.0 0"
        self._is_draining = False

    def serve(self) -> None:
        """Serve until told to end and no client is left, or until neither daemon nor client is."""
        os.write(4, b"!")
        os.close(4)
        while self._clients or (self._control and not self._is_draining):
            sources = [self._listening, *self._clients, *([self._control] if self._control else [])]
            for ready in select.select(sources, [], [])[0]:
                if ready is self._listening:
                    self._welcome()
                elif ready is self._control:
                    self._obey(ready)
                else:
                    self._hear(ready)
        with suppress(OSError):  # a new control daemon has cleared the folder
            os.unlink(self._path)  # noqa: PTH108

    def _welcome(self) -> None:
        client, _ = self._listening.accept()
        pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self._clients[client] = pid
        client.sendall(f"LIMITS {self._limits}\n".encode())

    def _obey(self, control: socket.socket) -> None:
        """Do what the control daemon says; it has ended when it says nothing."""
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

    def _hear(self, client: socket.socket) -> None:
        if client not in self._clients:
            return  # dropped a moment ago
        try:
            heard = client.recv(256)
            if heard:
                client.sendall(b"PONG " + heard)
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
