"""LedgerAccess: reads and writes of the ledger's file, from which claims that were undone on a full disk are hidden.

Reads leave out the claims that `unprepared` lists; a write removes their rows first. Each thread waits for a locked
file until its call's deadline.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from dra_driver.model.errors import LedgerError
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.claim_files import ClaimFiles
from dra_driver.plugin.ledger.database import BUSY_SECONDS
from dra_driver.plugin.ledger.ledger_file import LedgerFile
from dra_driver.plugin.ledger.ledger_rows import records_of, remove, view_without
from dra_driver.plugin.ledger.unprepared import UnpreparedClaims
from dra_driver.store.connections import NO_ROOM
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

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
