"""The log files of MPS daemons, kept bounded while daemons write to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from dra_driver.mps import client_files
from dra_driver.mps.daemon_folder import DaemonFolder

LOG_BYTES = 4 << 20  # the longest that a log file may be


def bound_logs(folders: Iterable[DaemonFolder], *, max_bytes: int = LOG_BYTES) -> None:
    """Shorten log files longer than `max_bytes` to their newest part, in place, because daemons keep them open."""
    for folder in folders:
        for path in folder.log.glob("*.log") if folder.log.is_dir() else ():
            with suppress(OSError):
                fd = client_files.open_regular(path, os.O_RDWR)
                try:
                    _cut(fd, max_bytes)
                finally:
                    os.close(fd)


def _cut(fd: int, max_bytes: int) -> None:
    size = os.fstat(fd).st_size
    if size > max_bytes:
        kept = os.pread(fd, max_bytes // 2, size - max_bytes // 2).partition(b"\n")[2]
        os.ftruncate(fd, 0)
        os.pwrite(fd, kept, 0)
