"""LedgerAccess: reads and writes of the ledger's file, from which claims that were undone on a full disk are hidden.

Reads leave out the claims that `unprepared` lists; a write removes their rows first. Each thread waits for a locked
file until its call's deadline.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from dra_driver.base.errors import LedgerError
from dra_driver.base.machine import Deadline
from dra_driver.base.telemetry.logs import fields
from dra_driver.node.ledger.database import BUSY_SECONDS, NO_ROOM
from dra_driver.node.ledger.ledger_file import LedgerFile, records_of, remove, view_without
from dra_driver.node.ledger.record import ClaimFiles

# Unprepared claims: those that were undone while the disk had no room to record that in the ledger.

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


T = TypeVar("T")


class _DeadlineScope:
    """Sets the deadline of a thread for the length of a `with` block. A generator would cost more time."""

    __slots__ = ("_before", "_deadline", "_of_thread")

    def __init__(self, of_thread: threading.local, deadline: Deadline) -> None:
        self._of_thread, self._deadline = of_thread, deadline

    def __enter__(self) -> None:
        self._before = getattr(self._of_thread, "deadline", None)
        self._of_thread.deadline = self._deadline

    def __exit__(self, *_: object) -> None:
        self._of_thread.deadline = self._before


class LedgerAccess:
    """The file of a ledger; for the arguments see `Ledger`."""

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        files: ClaimFiles,
        reads_only: bool,
    ) -> None:
        self.path = path
        self._boot_id = boot_id
        self._unsettled_nodes: dict[str, tuple[int, ...]] = {}  # of claims that were undone on a full disk, by UID
        self._of_thread = threading.local()
        self._unprepared = UnpreparedClaims(self.path.with_name(f"{self.path.name}.unprepared"), files=files)
        self._file = LedgerFile(self.path, files=files, reads_only=reads_only, opened=self._unprepared.make)
        self._reads_only = reads_only

    def open(self) -> None:
        """Open the file. If that fails, log why; every read and write tries again."""
        try:
            self._file.current(self._deadline())
        except LedgerError as error:
            log.error("ledger can't be opened yet", extra=fields(code=error.code, err=str(error)))  # noqa: TRY400

    @property
    def is_read_only(self) -> bool:
        """Return whether a newer major version wrote the ledger, or it was opened only for inspection."""
        return self._file.is_read_only

    @property
    def problem(self) -> str:
        """Return why the ledger keeps the agent from being ready, in words; "" if it does not."""
        return self._file.problem

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._unprepared.close()

    def until(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context in which this thread waits for a locked file until `deadline` instead of 5 seconds."""
        return _DeadlineScope(self._of_thread, deadline)

    def require_writable(self) -> None:
        """Raise LedgerError("ledger.newer") when a newer major version wrote the ledger."""
        if self.is_read_only:
            raise LedgerError("newer", self.problem, hint="run the newer agent again, or drain the node first")

    def version(self) -> object:
        """Return a value that is different after every change, by whatever process. Raises: LedgerError."""
        database = self._file.current(self._deadline())
        return database, database.version(), self._hidden()

    def settle(self) -> int:
        """Remove the claims that could not be forgotten when they were undone, and return their number.

        The list is shortened in a second transaction, whose lock prevents every other writer meanwhile, so a claim that
        was prepared again can't be mistaken for one that was undone. The pods of these claims count as alive until the
        release watch has checked them. Raises: LedgerError, with the list unchanged.
        """
        if self.is_read_only or not (count := len(self._hidden())):
            return 0

        def remove_rows(connection: sqlite3.Connection) -> None:
            for record in records_of(connection, self._hidden()):
                nodes = self._unsettled_nodes.get(record.uid, ())
                remove(connection, record, record.pods, self._boot_id, nodes)

        def shorten(connection: sqlite3.Connection) -> None:
            uids = self._hidden()
            self._unprepared.remove(uids.difference(record.uid for record in records_of(connection, uids)))
            self._unsettled_nodes.clear()

        self._use(remove_rows)
        self._use(shorten)
        log.info("claims that were undone on a full disk have been forgotten", extra=fields(count=count))
        return count

    # The methods below hide the undone claims from reads, and remove them (`settle`) before writes.

    def _read(self, sql: str, values: Iterable[object] = ()) -> list[sqlite3.Row]:
        view = view_without(self._hidden())
        deadline = self._deadline()
        return self._file.use(
            lambda database: database.read(sql, tuple(values), deadline=deadline, view=view), deadline
        )

    def _execute(self, sql: str, values: tuple[object, ...], *, is_synced: bool = True) -> None:
        self._write(lambda connection: connection.execute(sql, values), is_synced=is_synced)

    def _write(self, job: Callable[[sqlite3.Connection], T], *, is_synced: bool = True) -> T:
        self.require_writable()
        if self._hidden():
            self.settle()
        return self._use(job, is_synced=is_synced)

    def _use(self, job: Callable[[sqlite3.Connection], T], *, is_synced: bool = True) -> T:
        deadline = self._deadline()
        return self._file.use(lambda database: database.write(job, deadline=deadline, is_synced=is_synced), deadline)

    def _hidden(self) -> frozenset[str]:
        try:
            return self._unprepared.uids()
        except OSError as exc:
            raise LedgerError("input-output", f"list of unprepared claims beside {self.path}: {exc}") from exc

    def _deadline(self) -> Deadline:
        return getattr(self._of_thread, "deadline", None) or Deadline.after(BUSY_SECONDS)


@contextmanager
def tolerate_full_disk(what: str) -> Iterator[None]:
    """Let a write fail if the disk is full, and log that: `what` is a write that undoing can do without.

    What such a write leaves undone is tidied up later.
    """
    try:
        yield
    except LedgerError as error:
        if error.code not in NO_ROOM:
            raise
        log.warning(
            "ledger not written because the disk is full; undoing continues", extra=fields(reason=what, err=str(error))
        )
