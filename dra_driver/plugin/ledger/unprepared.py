"""Unprepared claims: those that were undone while the disk had no room to record that in the ledger.

In: UIDs. Out: the same, for every agent on the node, until their rows are gone. They are kept in a file that is made
in its full length while there is room, and later only written in place, which needs no space. If even this file could
not be made, they are remembered as long as the agent runs. If a claim's CDI file exists again, an older agent that does
not read this list has prepared the claim again, and the claim's row counts.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.plugin.ledger.claim_files import ClaimFiles
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

SLOTS, WIDTH = 256, 64  # the most claims at a time; bytes for each, of which a UUID takes 36
_UID = re.compile(rb"[A-Za-z0-9-]{1,63}")


class UnpreparedClaims:
    """The UIDs in the file at `path`, which has slots of equal width.

    The first slot is a counter of changes, so that one small read shows whether the others have to be read again.
    """

    def __init__(self, path: Path, *, files: ClaimFiles) -> None:
        self._path, self._files = path, files
        self._mutex = threading.RLock()
        self._fd = -1
        self._count = b""  # the counter of changes at the last read
        self._stored: frozenset[str] = frozenset()
        self._remembered: set[str] = set()

    def uids(self) -> frozenset[str]:
        """Return the claims whose rows are out of date because they were undone. Raises: OSError."""
        if self._fd < 0 and not self._remembered and not self._is_open():
            return self._stored
        with self._mutex:
            if self._fd >= 0 and os.pread(self._fd, WIDTH, 0) != self._count:
                with self._locked():
                    self._count = os.pread(self._fd, WIDTH, 0)
                    self._stored = frozenset(uid for uid in self._slots() if uid)
            found = self._stored.union(self._remembered)
            if not found:
                return found
            if prepared_again := {uid for uid in found if self._files.has(uid)}:
                self.remove(prepared_again)
            return found - prepared_again

    def make(self) -> None:
        """Open the file, or make it in its full length while the disk has room; the folder may have been replaced."""
        with self._mutex:
            self.close()
            if self._is_open():
                return
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX)
                    if os.fstat(fd).st_size < WIDTH * (SLOTS + 1):
                        os.pwrite(fd, bytes(WIDTH * (SLOTS + 1)), 0)
                        os.fsync(fd)
                finally:
                    os.close(fd)
            except OSError as error:
                log.warning(
                    "the list of unprepared claims can't be made on the disk",
                    extra=fields(file=str(self._path), err=str(error)),
                )

    def add(self, uid: str) -> None:
        """Add a claim. If the file can't be written, remember the claim as long as the agent runs."""
        with self._mutex:
            self._remembered.add(uid)
            if self._is_open():
                try:
                    with self._locked():
                        slots = list(self._slots())
                        if uid not in slots:
                            self._put({slots.index(""): uid})
                        self._remembered.discard(uid)
                except (OSError, ValueError) as error:  # ValueError means that no slot is free
                    log.warning("unprepared claim kept in memory only", extra=fields(claim_uid=uid, err=str(error)))

    def remove(self, uids: Iterable[str]) -> None:
        """Remove claims whose rows are gone. Raises: OSError."""
        with self._mutex:
            gone = frozenset(uids)
            if self._is_open():
                with self._locked():
                    self._put({index: "" for index, uid in enumerate(self._slots()) if uid in gone})
            self._remembered -= gone

    def close(self) -> None:
        """Close the file."""
        with self._mutex:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _is_open(self) -> bool:
        with self._mutex:
            if self._fd < 0:
                try:
                    fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                except OSError:
                    return False
                if os.fstat(fd).st_size < WIDTH * (SLOTS + 1):
                    os.close(fd)
                    return False
                self._fd, self._count = fd, b""
            return True

    def _slots(self) -> Iterator[str]:
        content = os.pread(self._fd, WIDTH * (SLOTS + 1), 0)
        for index in range(1, SLOTS + 1):
            slot = content[index * WIDTH : (index + 1) * WIDTH].rstrip(b"\0")
            yield slot.decode() if _UID.fullmatch(slot) else ""

    def _put(self, changes: dict[int, str]) -> None:
        for index, uid in changes.items():
            os.pwrite(self._fd, uid.encode().ljust(WIDTH, b"\0"), (index + 1) * WIDTH)
        count = int.from_bytes(os.pread(self._fd, 8, 0)) + 1
        os.pwrite(self._fd, count.to_bytes(8).ljust(WIDTH, b"\0"), 0)
        os.fsync(self._fd)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
