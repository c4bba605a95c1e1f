"""What changes in the files below a folder, asked for again and again while a call runs."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import time
from pathlib import Path
from typing import Any

FRESH_NS = 100_000_000  # a file that was written as recently as this may be written again without a new time of change
_LIBC = ctypes.CDLL(None, use_errno=True)
# inotify(7): IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE and IN_DELETE
_ANY_CHANGE = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200


class TreeChanges:
    """Whether anything below `root` is not as it was when this was last asked.

    The kernel reports when something was touched; only then are the files compared, as most touches change nothing.
    Changes through mapped memory go unseen: of SQLite's files only the `-shm` has them, which is left out. Where a
    user has no inotify instance left, the files are compared each time.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._known: dict[tuple[str, int, int, int], bytes] = {}
        self._last: tuple[Any, ...] = ()
        self._touches = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watch()

    def are_new(self) -> bool:
        """Return whether there is a change since the last call; the first call returns True."""
        if self._last and not self._was_touched():
            return False
        now = tuple(self._below(self._root))
        is_new, self._last = now != self._last, now
        return is_new

    def _was_touched(self) -> bool:
        if self._touches < 0:
            return True
        try:
            os.read(self._touches, 1 << 20)
        except BlockingIOError:
            return False
        self._watch()
        return True

    def _watch(self) -> None:
        """Watch every folder that is not watched yet; the parent of a folder reports when it is gone."""
        for folder, _, _ in os.walk(self._root):
            status = _LIBC.inotify_add_watch(self._touches, os.fsencode(folder), _ANY_CHANGE)
            if status < 0 and ctypes.get_errno() != errno.ENOENT:
                self._touches = -1

    def _below(self, folder: str) -> list[Any]:
        found: list[Any] = []
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            if entry.name.endswith(".db-shm"):  # the first process to open the database rewrites it
                continue
            if entry.is_dir(follow_symlinks=False):
                found += [entry.path, *self._below(entry.path)]
            elif entry.is_symlink():
                found.append((entry.path, Path(entry.path).readlink()))
            else:
                found.append((entry.path, *self._of_file(entry)))
        return found

    def _of_file(self, entry: os.DirEntry[str]) -> tuple[Any, ...]:
        status = entry.stat()
        if not stat.S_ISREG(status.st_mode):
            return (status.st_mode,)
        key = (entry.path, status.st_ino, status.st_size, status.st_mtime_ns)
        if key not in self._known or time.time_ns() - status.st_mtime_ns < FRESH_NS:
            self._known[key] = Path(entry.path).read_bytes()
        return status.st_mode, self._known[key]
