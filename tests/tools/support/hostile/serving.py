"""Commands that serve: run as a process of their own until they serve or end, then asked to end.

A process is a fork of this one, in which everything is imported already; it has its own session, folder and log.
What is a bug: a traceback (status 70), an end by a signal, and no end at all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from dra_driver.__main__ import main
from dra_driver.base.errors import ExitCode

SERVE_SECONDS = 10.0  # a process that neither serves nor ends is asked to end after this
END_SECONDS = 60.0
_NEVER_ENDED = 200
_BEGUN = (b"plugin serving", b"supervisor ready", b"webhook serving", b"idle until one appears")
_MAX_LOG = 20_000


@dataclass(frozen=True, slots=True)
class Ran:
    """How a process ended: its status, the end of its output, and how long it took."""

    status: int
    said: str
    seconds: float

    @property
    def is_bug(self) -> bool:
        """Return whether no input may lead to this."""
        return self.status in {ExitCode.BUG, _NEVER_ENDED} or self.status < 0 or "Traceback" in self.said


def import_all() -> None:
    """Import what the processes need, so that a fork has it."""
    import dra_driver.node.daemon.main
    import dra_driver.node.daemon.node
    import dra_driver.node.mps.supervisor
    import dra_driver.tools.demo
    import dra_driver.tools.servers
    import dra_driver.tools.webhook.server  # noqa: F401


def served(arguments: list[str], folder: Path, environment: dict[str, str] | None = None) -> Ran:
    """Run a command in a folder; end it once it serves."""
    log = folder / "log"
    log.write_bytes(b"")
    began = time.monotonic()
    process = os.fork()
    if process == 0:
        _run(arguments, folder, log, environment or {})
    try:
        status = _wait(process, SERVE_SECONDS, log)
        if status is None:
            os.kill(process, signal.SIGTERM)
            status = _wait(process, END_SECONDS)
        if status is None:
            os.kill(process, signal.SIGABRT)  # so that faulthandler writes where the process hangs
            os.waitpid(process, 0)
            status = _NEVER_ENDED
    finally:
        with contextlib.suppress(ProcessLookupError):  # what it started and left
            os.killpg(process, signal.SIGKILL)
    said = log.read_bytes()[-_MAX_LOG:].decode("utf-8", "replace")
    return Ran(status, said, time.monotonic() - began)


def _run(arguments: list[str], folder: Path, log: Path, environment: dict[str, str]) -> None:
    """Run the command in the forked process, and end the process."""
    status = int(ExitCode.BUG)
    try:
        import faulthandler

        os.setsid()
        os.chdir(folder)
        os.environ.update(environment)
        output, nothing = os.open(log, os.O_WRONLY | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
        for number, file in ((0, nothing), (1, output), (2, output)):
            os.dup2(file, number)
        sys.stdout = os.fdopen(1, "w", errors="backslashreplace", closefd=False)
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
        faulthandler.enable(sys.stderr)
        sys.argv = ["dra-driver", *arguments]
        status = main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # tracebacks are what the cases look for
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _wait(process: int, seconds: float, log: Path | None = None) -> int | None:
    """Wait until a process ends, or its log says that it serves; return its status, None if it has not ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if log is not None and any(word in log.read_bytes()[:_MAX_LOG] for word in _BEGUN):
            return None
        time.sleep(0.02)
    return None
