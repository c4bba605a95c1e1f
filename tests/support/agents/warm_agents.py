"""Starts agents by forking a process that has already imported what an agent imports.

An agent's start is mostly imports, and tests start hundreds. Each agent is still a process of its own, with its own
arguments, variables, output, signals and exit status; only its imports are shared. This module is both the program that
forks, one for each process of tests, and the handle of what it has started.

The loader reads LD_LIBRARY_PATH only when a program begins. The program that forks is therefore started with the path
of a descriptor, and each agent opens its own folder as that descriptor.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dra_driver import __main__ as program

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = "LD_LIBRARY_PATH"


class WarmAgent:
    """An agent that was forked, with those methods of `subprocess.Popen` that tests use."""

    def __init__(self, forker: AgentForker, pid: int, args: list[str]) -> None:
        self.pid, self.args = pid, args
        self.returncode: int | None = None
        self._forker = forker
        self._fd = os.pidfd_open(pid)  # the process is reaped only when this object asks for it

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises: subprocess.TimeoutExpired."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the agent has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the agent by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """End the agent by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is not None:
            return self.returncode
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            return None
        self.returncode = self._forker.ask({"reap": self.pid})
        os.close(self._fd)
        return self.returncode


class AgentForker:
    """The process that forks agents, as seen from a process of tests.

    `module` is the program: this one, or another whose `main` calls the one here. `environment` are further variables.
    """

    def __init__(self, module: str = __name__, environment: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        libraries = os.open("/", os.O_PATH)
        path = f"/proc/self/fd/{libraries}:{os.environ.get(LIBRARIES, '')}"
        command = [sys.executable, "-m", module, str(theirs.fileno()), str(libraries)]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno(), libraries],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {}), LIBRARIES: path.rstrip(":")},
        )
        theirs.close()
        os.close(libraries)
        self._line = ours.makefile("rw")
        atexit.register(self.close)

    def start(self, words: list[str], log: Path, environment: dict[str, str]) -> WarmAgent:
        """Start `dra-driver` with these arguments and further variables; what it prints goes to `log`."""
        log.touch()
        variables = {**os.environ, **environment}
        request = {"words": words, "log": str(log), "cwd": str(Path.cwd()), "environment": variables}
        if folder := environment.get(LIBRARIES):
            request["libraries"] = folder
        return WarmAgent(self, self.ask(request), words)

    def ask(self, request: dict[str, Any]) -> int:
        """Send one request; return the number that it is answered with."""
        with self._lock:
            self._line.write(json.dumps(request) + "\n")
            self._line.flush()
            return int(self._line.readline())

    def close(self) -> None:
        """End the process; agents that still run go on."""
        self._line.close()
        self._process.wait(60)


@cache
def forker() -> AgentForker:
    """Return the forking process of this process of tests, which is started with the first agent."""
    return AgentForker()


def main() -> int:
    """Serve requests until the other end closes; in a forked child, be the agent."""
    line = socket.socket(fileno=int(sys.argv[1]))

    gc.freeze()
    while request := _request(line):
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            line.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            _become(request, int(sys.argv[2]))
            return program.main()
        line.sendall(f"{pid}\n".encode())
    return 0


def _request(connection: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            return {}
        data += part
    return dict(json.loads(data))


def _become(request: dict[str, Any], libraries: int) -> None:
    os.chdir(request["cwd"])
    if "libraries" in request:
        os.dup2(os.open(request["libraries"], os.O_PATH), libraries, inheritable=False)
    os.environ.clear()
    os.environ.update(request["environment"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    sys.argv[1:] = request["words"]


if __name__ == "__main__":
    sys.exit(main())
