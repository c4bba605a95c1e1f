"""Node role: of several instances on a node, exactly one has the role; it publishes slices and removes leftovers.

The instance that has locked a file has the role; another one takes it over when the lock is released or its owner dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from functools import partial
from pathlib import Path
from typing import Protocol

from dra_driver.model.errors import DriverError, NodeError
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.part_thread import PartThread

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2  # between two attempts to get the role while another instance has it


class RoleListener(Protocol):
    """Is called, in the role's own thread, when this instance gets the role or loses it."""

    def role_gained(self) -> None:
        """Begin what only the instance with the role does. Any error means that this instance has to end."""

    def role_lost(self) -> None:
        """End what only the instance with the role does; another one takes over after that."""


class NodeRole:
    """The role, which belongs to the instance that has locked the file `path`.

    If its work could not be begun, the role is kept, with `failure` set, until `stop`: the instance has to end.
    """

    def __init__(self, path: str | os.PathLike[str], listener: RoleListener) -> None:
        self._path, self._listener = Path(path), listener
        self._stop = threading.Event()
        self._thread: PartThread | None = None
        self.is_held = self.has_begun = False  # has_begun: whether the listener has begun its work
        self.has_asked = False  # whether it is known if this instance has the role
        self.failure: Exception | None = None

    def start(self) -> None:
        """Start trying to get the role. Raises: NodeError("node.role-file", "node.thread")."""
        fd = self._open()
        thread = PartThread("role", partial(self._run, fd))
        try:
            thread.start()
        except DriverError:
            os.close(fd)
            raise
        self._thread = thread

    def stop(self, timeout_s: float = 10.0) -> None:
        """Release the role. The listener is called first; only then can another instance take the role."""
        self._stop.set()
        if self._thread is not None:
            self._thread.release()
            self._thread.join(timeout_s)

    def _run(self, fd: int, thread: PartThread) -> None:
        try:
            while not _try_lock(fd):
                self.has_asked = True
                if self._stop.wait(POLL_SECONDS):
                    return
            self.is_held = self.has_asked = True
            log.info("role gained", extra=fields(role=self._path.name, pid=os.getpid()))
            with thread.turn():
                self._begin_work()
            self._stop.wait()
            self._end_work()
            self.is_held = self.has_begun = False
            log.info("role given up", extra=fields(role=self._path.name))
        finally:
            os.close(fd)

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise NodeError("role-file", f"role file {self._path} can't be opened: {exc.strerror}") from exc

    def _begin_work(self) -> None:
        try:
            self._listener.role_gained()
            self.has_begun = True
        except Exception as error:  # noqa: BLE001 - reported by whoever ends this instance
            self.failure = error

    def _end_work(self) -> None:
        try:
            self._listener.role_lost()
        except Exception:
            log.exception("role given up although its work did not end")


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
