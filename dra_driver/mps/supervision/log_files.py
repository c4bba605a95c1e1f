"""The log files of MPS daemons, kept bounded while daemons write to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from dra_driver.mps import client_files
from dra_driver.mps.folder import Folder

LOG_BYTES = 4 << 20  # the longest that a log file may be


def bound_logs(folders: Iterable[Folder], *, most_bytes: int = LOG_BYTES) -> None:
    """Shorten log files longer than `most_bytes` to their newest part, in place, because daemons keep them open."""
    for folder in folders:
        for path in folder.log.glob("*.log") if folder.log.is_dir() else ():
            with suppress(OSError):
                fd = client_files.open_regular(path, os.O_RDWR)
                try:
                    _cut(fd, most_bytes)
                finally:
                    os.close(fd)


def _cut(fd: int, most_bytes: int) -> None:
    size = os.fstat(fd).st_size
    if size > most_bytes:
        kept = os.pread(fd, most_bytes // 2, size - most_bytes // 2).partition(b"\n")[2]
        os.ftruncate(fd, 0)
        os.pwrite(fd, kept, 0)
