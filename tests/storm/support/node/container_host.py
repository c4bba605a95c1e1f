"""Containers without a runtime: processes with mounts of their own, the nodes of CDI devices, and these kept open.

In: pods, and the nodes that their containers get. Out: processes that live until they are killed. They look to the
kernel like containers: /etc/hosts comes from the kubelet's folder of the pod, and /dev is theirs alone. They are forked
by a small process (`main`), because a fork of a process with many threads and much memory is slow, and may hang.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.storm.support.node.devices import MAJOR
from tests.storm.support.sandbox import MS_BIND, MS_NOSUID, end_with_parent, leave_administration, leave_mounts, mount

ROOT = Path(__file__).resolve().parents[4]
PF_EXITING = 4  # a flag of a process
Node = tuple[str, int, int]  # path in the container, major, minor


@dataclass(eq=False)
class Container:
    """A process in a container of a pod. It is alive until the kernel says otherwise."""

    pid: int
    pod: str
    claim: str
    fd: int = field(repr=False)

    def is_alive(self) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return not poll.poll(0)

    def is_ending(self) -> bool:
        """Return whether the process has begun to end: its files are not listed any more, and closed later."""
        with suppress(OSError):
            columns = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return bool(int(columns[6]) & PF_EXITING)
        return True

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)

    def wait(self) -> None:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll()

    def open_nodes(self) -> set[int]:
        """Return the numbers of the device nodes that the process has open, as the kernel shows them."""
        found = set()
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{self.pid}/fd"):
                with suppress(OSError):
                    status = Path(entry.path).stat()
                    if stat.S_ISCHR(status.st_mode):
                        found.add(status.st_rdev)
        return found

    def nodes(self) -> set[int]:
        """Return the numbers of the device nodes in the container, open or not: its process may open one any time."""
        found = set()
        for path in Path(f"/proc/{self.pid}/root/dev").rglob("*"):
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISCHR(status.st_mode):
                    found.add(status.st_rdev)
        return found


class ContainerHost:
    """Starts containers. Any thread may call it."""

    def __init__(self, terminals: Path) -> None:
        self._lock, self._terminals = threading.Lock(), terminals
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, stdin=subprocess.DEVNULL)
        theirs.close()
        self._line = ours.makefile("rw")

    def run(self, pod: str, claim: str, hosts: Path, nodes: Iterable[Node], *, is_open: bool = True) -> Container:
        """Start a container with these nodes; its process has them open, unless `is_open` is false."""
        request = {"hosts": str(hosts), "nodes": list(nodes), "open": is_open, "terminals": str(self._terminals)}
        with self._lock:
            self._line.write(json.dumps(request) + "\n")
            self._line.flush()
            answer = json.loads(self._line.readline())
            if answer["error"]:
                raise AssertionError(f"no container for {pod}: {answer['error']}")
            return Container(answer["pid"], pod, claim, os.pidfd_open(answer["pid"]))


def _contain(request: dict[str, Any]) -> None:
    leave_mounts()
    mount(request["hosts"], "/etc/hosts", "", MS_BIND)
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID)
    for path, major, minor in [("/dev/null", 1, 3), *request["nodes"]]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        terminal = Path(request["terminals"], str(minor))
        if major != MAJOR or not terminal.exists():
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            continue
        Path(path).touch()
        mount(str(terminal), path, "", MS_BIND)
        if request["open"]:
            os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    leave_administration()


def _run(request: dict[str, Any]) -> tuple[int, str]:
    """Fork a container; return its process when it has everything, and why it has not."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        error = ""
        end_with_parent()
        try:
            _contain(request)
        except OSError as fault:
            error = str(fault)
        os.write(write, error.encode())
        os.closerange(3, write + 1) if error else os.close(write)
        while not error:
            signal.pause()
        os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        return pid, answer.read().decode()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    line = socket.socket(fileno=int(sys.argv[1])).makefile("rw")
    for text in line:
        pid, error = _run(json.loads(text))
        line.write(json.dumps({"pid": pid, "error": error}) + "\n")
        line.flush()


if __name__ == "__main__":
    main()
