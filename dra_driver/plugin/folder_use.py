"""Tenancy: which agents use the plugin's folder; the last one to leave takes the folder with it when no claim is in it.

So an uninstalled driver leaves nothing on a node. Each agent holds a shared lock on one file for as long as it lives;
whoever gets that lock alone is the last. Never: a file that is not the plugin's own, or one that a claim, a MIG mode
that we switched on, or a report of a damaged ledger needs.
"""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from dra_driver.model.errors import NodeError
from dra_driver.plugin.kubelet.sockets import is_refused, make_folder
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

LOCK = "tenants"
# What an agent makes again when it starts.
_OWN = (
    *(f"ledger.db{ending}" for ending in ("", "-wal", "-shm", ".open", ".unprepared")),
    *("locks", "role.lock", "simulated-mig.lock", "simulated-modes.lock"),
)


class FolderUse:
    """One agent's stay in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None

    def enter(self) -> None:
        """Make the folder where there is none, and stay. Raises: NodeError."""
        while self._fd is None:
            try:
                make_folder(self._folder)
                fd = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the last tenant has just taken the folder away
                continue
            except NodeError as error:  # or took it while we looked whether it is there
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
        """Leave; take the folder away unless something in it is needed or somebody else is there."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            if not is_needed and self._is_last(fd):
                for name in (*_OWN, LOCK):
                    (self._folder / name).unlink(missing_ok=True)
                with suppress(OSError):  # something else lies there
                    self._folder.rmdir()
        except OSError as exc:
            log.warning("folder not tidied", extra=fields(err=str(exc)))
        finally:
            os.close(fd)

    def _is_last(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # An agent of before this file existed holds no lock, but serves.
        return self._is_current(fd) and all(is_refused(path) for path in self._folder.glob("*.sock"))

    def _is_current(self, fd: int) -> bool:
        try:
            return (self._folder / LOCK).stat().st_ino == os.fstat(fd).st_ino
        except FileNotFoundError:
            return False
