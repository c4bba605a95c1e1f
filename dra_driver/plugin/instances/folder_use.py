"""Folder use: the agents that use the plugin's folder. The last one removes it unless a claim still needs it.

In this way a driver that is uninstalled leaves nothing on a node. Each agent holds a shared lock on one file as long as
it runs; an agent that gets the exclusive lock is the last one. The folder stays while a claim needs it, or a MIG mode
that this driver switched on. Files that are not the plugin's own stay, and so does a ledger that was set aside.
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from contextlib import suppress
from pathlib import Path

from dra_driver.model.errors import NodeError
from dra_driver.plugin.kubelet.sockets import is_refused, make_folder
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

LOCK = "tenants"
FOLDER_ID = "folder-id"
# The files that an agent makes again when it starts.
_OWN = (
    *(f"ledger.db{ending}" for ending in ("", "-wal", "-shm", ".open", ".unprepared")),
    *(f"state.db{ending}" for ending in ("", "-journal", ".open", ".damaged")),
    *("health.db", "health.db-journal", "health.db.damaged", "health-forget", "cordons.lock"),
    *(FOLDER_ID, "locks", "role.lock", "simulated-mig.lock", "simulated-modes.lock"),
)
_OWN_IF_EMPTY = ("simulated-mig.json", "simulated-modes.json", "simulated-resets.json")


def folder_id(folder: Path) -> str:
    """Return the id of a plugin's folder, which is the same for all its agents and for no other folder.

    Raises: NodeError("node.lock-file").
    """
    path, mine = folder / FOLDER_ID, folder / f".{FOLDER_ID}.{os.getpid()}"
    try:
        if not path.exists():
            mine.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
            with suppress(FileExistsError):  # another agent was faster
                os.link(mine, path)
            mine.unlink()
        return path.read_text(encoding="ascii").strip()[:36]
    except (OSError, ValueError) as exc:
        raise NodeError("lock-file", f"{path} can't be read: {exc}") from exc


class FolderUse:
    """One agent's use of `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None

    def enter(self) -> None:
        """Make the folder if it is missing, and hold the shared lock. Raises: NodeError."""
        while self._fd is None:
            try:
                make_folder(self._folder)
                fd = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the last agent has just removed the folder
                continue
            except NodeError as error:  # the last agent may have removed the folder while it was being made
                if isinstance(error.__cause__, FileExistsError) and not self._folder.is_file():
                    continue
                raise
            except OSError as exc:
                raise NodeError("lock-file", f"{self._folder / LOCK} can't be opened: {exc.strerror}") from exc
            fcntl.flock(fd, fcntl.LOCK_SH)
            if self._is_current(fd):
                self._fd = fd
            else:
                os.close(fd)

    def leave(self, *, is_needed: bool) -> None:
        """Release the lock; remove the folder unless something in it is needed or another agent uses it."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            if not is_needed and self._is_last(fd):
                for name in (*_OWN, *filter(self._is_empty, _OWN_IF_EMPTY), LOCK):
                    (self._folder / name).unlink(missing_ok=True)
                with suppress(OSError):  # there are other files in the folder
                    self._folder.rmdir()
        except OSError as exc:
            log.warning("folder not removed", extra=fields(err=str(exc)))
        finally:
            os.close(fd)

    def _is_last(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # An agent of a version without this lock file holds no lock, but its socket answers.
        return self._is_current(fd) and all(is_refused(path) for path in self._folder.glob("*.sock"))

    def _is_empty(self, name: str) -> bool:
        try:
            return (self._folder / name).stat().st_size == 0
        except FileNotFoundError:
            return False

    def _is_current(self, fd: int) -> bool:
        try:
            return (self._folder / LOCK).stat().st_ino == os.fstat(fd).st_ino
        except FileNotFoundError:
            return False
