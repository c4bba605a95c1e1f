"""WAL space: disk space for SQLite's write-ahead log (WAL), reserved in advance.

A commit that makes the log longer changes the file's length too, which the disk has to record in a second write before
the commit is durable. In a log that is already long enough, a commit takes one write. If the disk is full later, such a
log still has space.

In: the path of a database. Out: a log of `WAL_BYTES`, filled up with zeros. SQLite treats the first frame without a
valid checksum as the end of the log, and zeros are no valid checksum.
Source: SQLite file format, section 4.1 ("WAL File Format"); fdatasync(2), which has to write a file's length.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# Enough for `WAL_PAGES` frames with their headers, and for one more commit of many claims.
WAL_BYTES = 1 << 20
_FREE_BYTES = 64 << 20  # that the disk must have free: on a smaller or fuller disk, others need the space more


def reserve_wal_space(path: Path) -> None:
    """Make the log of the database at `path` at least `WAL_BYTES` long, if the disk has room enough.

    Call it within a write transaction: its lock keeps every other process from writing to the log or removing it.
    """
    with suppress(OSError):  # without the space, commits are only slower
        fd = os.open(f"{path}-wal", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            disk, length = os.fstatvfs(fd), os.fstat(fd).st_size
            if length < WAL_BYTES and disk.f_bavail * disk.f_frsize > _FREE_BYTES:
                os.pwrite(fd, bytes(WAL_BYTES - length), length)
                os.fsync(fd)
        finally:
            os.close(fd)
