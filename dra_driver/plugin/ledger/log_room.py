"""Log room: room for SQLite's write-ahead log, taken in advance.

A commit that makes the log longer changes the file's length too, which the disk has to record in a second write before
the commit is durable. In a log that is long enough already, a commit is one write. Where the disk is full later, such a
log still has room.

In: the path of a database. Out: a log of `LOG_BYTES`, filled with zeros behind what it holds. SQLite takes the first
frame that has no valid checksum for the end of the log, and zeros have none.
Source: SQLite file format, section 4.1 ("WAL File Format"); fdatasync(2), which has to write a file's length.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# `LOG_PAGES` frames with their headers, and the frames of a commit of many claims that comes on top of them.
LOG_BYTES = 1 << 20
_FREE_BYTES = 64 << 20  # what the disk must have free: on a smaller or fuller one, others need the room more


def take_room(path: Path) -> None:
    """Make the log of the database at `path` at least `LOG_BYTES` long, if the disk has room enough.

    Call it within a write transaction: its lock keeps every other process from writing to the log or removing it.
    """
    with suppress(OSError):  # it is only slower without
        fd = os.open(f"{path}-wal", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            disk, length = os.fstatvfs(fd), os.fstat(fd).st_size
            if length < LOG_BYTES and disk.f_bavail * disk.f_frsize > _FREE_BYTES:
                os.pwrite(fd, bytes(LOG_BYTES - length), length)
                os.fsync(fd)
        finally:
            os.close(fd)
