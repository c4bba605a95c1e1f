"""One long-running program inside the sandbox: started, watched, stopped by its own pid, with its output in a log.

In: a name, a command line, the sandbox. Out: a running process. Processes are never searched for by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from cluster.sandbox import Sandbox, until


class DaemonDied(Exception):
    """A program ended that was supposed to keep running."""


class Daemon:
    """A program with a log; `start` may be called again after `stop` or a crash."""

    started: ClassVar[list[subprocess.Popen[bytes]]] = []

    def __init__(
        self,
        sandbox: Sandbox,
        name: str,
        argv: Sequence[str],
        *,
        mount: Path | None = None,
        group: str = "control",
        environment: Mapping[str, str] | None = None,
        keep: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.sandbox = sandbox
        self.argv = [str(word) for word in argv]
        self.mount = mount
        self.group = group
        self.environment = dict(environment or {})
        self.keep = tuple(keep)
        self.log = sandbox.root / "log" / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process id of the program itself."""
        if self.process is None:
            raise DaemonDied(f"{self.name} was not started")
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Return whether the program runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> Daemon:
        """Start the program in the sandbox; its output is appended to the log."""
        if self.alive:
            return self
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log.write(f"--- {' '.join(self.argv)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                self.sandbox.enter(*self.argv, mount=self.mount, group=self.group),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self.keep,
                env=os.environ | self.environment,
            )
        Daemon.started.append(self.process)
        return self

    @classmethod
    def reap(cls) -> None:
        """Collect the exit codes of programs that have ended, so that no zombies are left."""
        cls.started = [process for process in cls.started if process.poll() is None]

    def check(self) -> None:
        """Raise DaemonDied, with the end of the log, unless the program runs."""
        if not self.alive:
            code = self.process.returncode if self.process else None
            raise DaemonDied(f"{self.name} ended with {code}; {self.log} ends:\n{self.tail()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program, if it still runs."""
        if self.alive:
            os.kill(self.pid, number)

    def stop(self, seconds: float = 20) -> int | None:
        """Ask the program to end, kill it after `seconds`, and return its exit code."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int | None:
        """End the program at once."""
        self.signal(signal.SIGKILL)
        return self.wait(10)

    def wait(self, seconds: float) -> int | None:
        """Wait for the program's end and return its exit code."""
        return self.process.wait(seconds) if self.process else None

    def tail(self, lines: int = 30) -> str:
        """Return the end of the log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def until(self, what: str, probe: Callable[[], object], seconds: float) -> None:
        """Wait for a condition; if the program ends first, fail at once with the end of its log."""

        def living() -> bool:
            self.check()
            return bool(probe())

        until(f"{self.name}: {what}", living, seconds)
