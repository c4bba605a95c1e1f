"""Read and remove files that clients may have put into a folder, without following links or blocking.

In: folders that a hostile client can write (pipe, shm), and files that may have grown or changed. Out: a few bytes of a
regular file of our own user; folders emptied, however deep they are; files removed that no process uses any more.
Never: a symbolic link followed, a wait for a FIFO or device, a whole file in memory, work without end: clients may make
files faster than this process can remove them, so emptying and sweeping stop after a time.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import time
from contextlib import suppress
from pathlib import Path

DEPTH = 16  # how many levels of folders are searched for unused files; deeper ones are emptied as a whole
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _OPEN
_SET_SIGNAL = 10  # F_SETSIG: the signal for a broken lease; the default signal would end this process
_TRASH = ".removed-"
_EMPTY_S = 1.0  # enough for a whole tmpfs: 16384 files, or as many nested folders, take 0.2 s
_SWEEP_S = 10.0  # enough for a whole tmpfs: 16384 files take 0.6 s on an idle node


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of our own user. Raises: OSError, also if the path leads to anything else."""
    fd = os.open(path, flags | _OPEN)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise PermissionError(f"{path} is not a regular file of user {os.geteuid()}")


def tail(path: Path, max_bytes: int, begins: int = 0) -> bytes:
    """Return the last bytes of a regular file of our own user, none before `begins`; b"" if there is none."""
    try:
        fd = open_regular(path)
    except OSError:
        return b""
    try:
        return os.pread(fd, max_bytes, max(begins, os.fstat(fd).st_size - max_bytes))
    finally:
        os.close(fd)


def size(path: Path) -> int:
    """Return the size of a regular file of our own user; 0 if there is none."""
    try:
        fd = open_regular(path)
    except OSError:
        return 0
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def empty(folder: Path, seconds: float = _EMPTY_S) -> bool:
    """Remove everything in a folder; do nothing if the folder is missing. Raises: OSError.

    Nested folders are moved up before they are searched, so that no depth needs recursion. Return whether the folder
    became empty within `seconds`, which it does not if clients write into it all the time.
    """
    try:
        fd = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return True
    try:
        return _empty(fd, time.monotonic() + seconds)
    finally:
        os.close(fd)


def sweep(folder: Path, seconds: float = _SWEEP_S) -> int:
    """Remove the files below a folder that no process has open or mapped; return how many. Raises: OSError.

    Sockets and FIFOs stay, because they hold no data. Folders in which nothing was removed stay as well, and so does
    whatever is not reached within `seconds`.
    """
    fd = os.open(folder, _FOLDER)
    try:
        return _sweep(fd, DEPTH, time.monotonic() + seconds)
    finally:
        os.close(fd)


def _empty(fd: int, until: float) -> bool:
    while names := os.listdir(fd):
        for name in names:
            if time.monotonic() >= until:
                return False
            with suppress(FileNotFoundError, NotADirectoryError):  # a client changed it; the next round handles it
                _remove(fd, name)
    return True


def _remove(fd: int, name: str) -> None:
    """Remove one entry. If it is a folder, move the folders in it up, under names that no client can guess."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=fd)
        return
    inner = os.open(name, _FOLDER, dir_fd=fd)
    try:
        for below in os.listdir(inner):  # noqa: PTH208
            try:
                os.unlink(below, dir_fd=inner)
            except IsADirectoryError:
                os.rename(below, f"{_TRASH}{os.urandom(8).hex()}", src_dir_fd=inner, dst_dir_fd=fd)
    finally:
        os.close(inner)
    with suppress(OSError):  # a client has written into it meanwhile; the next round handles that
        os.rmdir(name, dir_fd=fd)


def _sweep(fd: int, depth: int, until: float) -> int:
    removed = 0
    for name in os.listdir(fd):
        if time.monotonic() >= until:
            break
        with suppress(OSError):  # it is gone, or whether it is in use can't be determined
            kind = stat.S_IFMT(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
            if kind == stat.S_IFDIR:
                removed += _sweep_folder(fd, name, depth, until)
            elif kind == stat.S_IFLNK or (kind == stat.S_IFREG and not _is_in_use(fd, name)):
                os.unlink(name, dir_fd=fd)
                removed += 1
    return removed


def _sweep_folder(fd: int, name: str, depth: int, until: float) -> int:
    inner = os.open(name, _FOLDER, dir_fd=fd)
    try:
        if depth == 0:
            _empty(inner, until)
            removed = 1
        else:
            removed = _sweep(inner, depth - 1, until)
    finally:
        os.close(inner)
    if removed:
        with suppress(OSError):  # not empty
            os.rmdir(name, dir_fd=fd)
    return removed


def _is_in_use(fd: int, name: str) -> bool:
    """Return whether a process has the file open or mapped: the kernel grants a write lease only if none has.

    Source: fcntl(2), "Leases".
    """
    try:
        file = os.open(name, os.O_RDONLY | _OPEN, dir_fd=fd)
    except BlockingIOError:  # a process holds a lease on it
        return True
    try:
        fcntl.fcntl(file, _SET_SIGNAL, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
