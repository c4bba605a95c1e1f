"""A simulated MPS server as its control daemon sees it: a process, and a socket on which it takes commands."""

from __future__ import annotations

import os
import socket


class ServerProcess:
    """One server process as the control daemon sees it."""

    def __init__(self, pid: int, uid: int, line: socket.socket) -> None:
        self.pid, self.uid, self._line = pid, uid, line
        self.percentage, self.memory = 100.0, 0

    def ask(self, text: str) -> str:
        """Send the server a line and return its answer; "" if the server is gone."""
        try:
            self._line.sendall(f"{text}\n".encode())
            return read_line(self._line)
        except OSError:
            return ""

    def clients(self) -> list[int]:
        """Return the clients' pids."""
        return [int(word) for word in self.ask("LIST").split()]

    def has_ended(self) -> bool:
        """Return whether the process is gone."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            return True


def read_line(connection: socket.socket) -> str:
    """Read one line, or whatever came before the other side closed the connection."""
    data = b""
    while not data.endswith(b"\n") and (part := connection.recv(1)):
        data += part
    return data.decode(errors="replace").strip()
