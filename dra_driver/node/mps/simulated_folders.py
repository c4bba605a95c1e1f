"""The folders of a simulated control daemon: its pipe folder, with sockets and a pid file, and its logs.

Source: NVIDIA Multi-Process Service, CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY.
"""

from __future__ import annotations

import os
import time

PID_FILE = "nvidia-cuda-mps-control.pid"


class Folders:
    """The folders of a daemon's files."""

    def __init__(self) -> None:
        self.pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - the real default
        self.log = os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps")

    def path(self, name: str) -> str:
        """Return the path of a file in the pipe folder."""
        return f"{self.pipe}/{name}"

    def running(self) -> int:
        """Return the pid of the daemon that serves the pipe folder; 0 if there is none."""
        try:
            fd = os.open(
                self.path(PID_FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            )  # a client may have created this file
            with open(fd, encoding="utf-8") as file:  # noqa: PTH123
                pid = int(file.read(16))
            os.kill(pid, 0)
        except (OSError, ValueError, OverflowError):
            return 0
        return pid

    def append_log(self, name: str, who: str, text: str) -> None:
        """Append a line to a log, in the real program's format."""
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}"
        line = f"[{stamp} {who:7} {os.getpid():5}] {text}\n"
        fd = os.open(f"{self.log}/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(fd, line.encode())
        os.close(fd)
