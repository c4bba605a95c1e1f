"""Node role: of several instances on a node, exactly one has the role; it publishes slices and removes leftovers.

The instance that has locked a file has the role; another one takes it over when the lock is released or its owner dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dra_driver.model.errors import DriverError, NodeError
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2  # between two attempts to get the role while another instance has it


class RoleListener(Protocol):
    """Is called, in the role's own thread, when this instance gets the role or loses it."""

    def role_gained(self) -> None:
        """Begin what only the instance with the role does. Raises: DriverError."""

    def role_lost(self) -> None:
        """End what only the instance with the role does; another one takes over after that. Raises: DriverError."""


class NodeRole:
    """The role, which belongs to the instance that has locked the file `path`."""

    def __init__(self, path: str | os.PathLike[str], listener: RoleListener) -> None:
        self._path, self._listener = Path(path), listener
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_held = False

    def start(self) -> None:
        """Start trying to get the role. Raises: NodeError("node.role-file")."""
        self._thread = threading.Thread(target=self._run, args=(self._open(),), name="role", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Release the role. The listener is called first; only then can another instance take the role."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, fd: int) -> None:
        try:
            while not _try_lock(fd):
                if self._stop.wait(POLL_SECONDS):
                    return
            self.is_held = True
            log.info("role gained", extra=fields(role=self._path.name, pid=os.getpid()))
            self._call(self._listener.role_gained)
            self._stop.wait()
            self._call(self._listener.role_lost)
            self.is_held = False
            log.info("role given up", extra=fields(role=self._path.name))
        finally:
            os.close(fd)

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise NodeError("role-file", f"role file {self._path} can't be opened: {exc.strerror}") from exc

    def _call(self, function: Callable[[], None]) -> None:
        try:
            function()
        except DriverError as error:
            log.error("role change failed", extra=fields(code=error.code, err=str(error)))  # noqa: TRY400
        except Exception:
            log.exception("role change failed")


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
