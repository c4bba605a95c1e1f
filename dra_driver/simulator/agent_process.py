"""Agent process: the real agent as a child process, with its log in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import dra_driver
from dra_driver.base.errors import NodeError
from dra_driver.base.flags import FLAGS

# Agent process: the real agent as a child process, with its log in a file.

_LOG_LINES = 15


class AgentProcess:
    """`dra-driver agent` with the given flags.

    Environment variables that set flags are removed from its environment, so that the caller's do not reach it.
    """

    def __init__(self, flags: Mapping[str, str], log: Path, *, command: Sequence[str] = ()) -> None:
        self._command = [
            *(command or (sys.executable, "-m", "dra_driver", "agent")),
            *(word for name, value in flags.items() for word in (name, value)),
        ]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the process."""
        environment = {k: v for k, v in os.environ.items() if k not in {flag.variable for flag in FLAGS}}
        package_root = str(Path(dra_driver.__file__).parent.parent)
        paths = [package_root, *environment.get("PYTHONPATH", "").split(os.pathsep)]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def check(self) -> None:
        """Check that the process has not ended. Raises: NodeError("node.agent-died") with the last lines of its log."""
        status = self._process.poll() if self._process else None
        if status is not None:
            raise NodeError("agent-died", f"the agent ended with status {status}", hint=self.last_lines())

    def last_lines(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n  ".join(["its last lines:", *lines[-_LOG_LINES:]])

    def stop(self, timeout_s: float = 10.0) -> int:
        """Ask the process to end, as the kubelet would, and kill it after `timeout_s` seconds.

        Return its exit status.
        """
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Kill the process at once. Return its exit status (-9)."""
        if self._process is None:
            return 0
        self._process.kill()
        return self._process.wait(10)

    def resident_mib(self) -> float:
        """Return the resident memory of the process in MiB; 0 if it can't be read."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0.0
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def wait(self, timeout_s: float) -> int:
        """Wait for the process to end, and return its exit status.

        Raises: NodeError("node.agent-hangs") if it is still running after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        try:
            return self._process.wait(max(0.0, deadline - time.monotonic())) if self._process else 0
        except subprocess.TimeoutExpired:
            raise NodeError("agent-hangs", f"the agent did not end within {timeout_s:g} s") from None
