"""Open files of other processes: which devices they are, without a request to any file server, and who shares them.

A container may have files of a file server of its own (FUSE) open that never answers, so the kernel is asked only for
what it knows already (AT_STATX_DONT_SYNC); an ordinary stat could hang for ever.
Source: statx(2), kcmp(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat

_DONT_SYNC, _NO_AUTOMOUNT, _NOFOLLOW, _EMPTY_PATH = 0x4000, 0x800, 0x100, 0x1000
_TYPE = 0x1
_BYTES, _MODE, _RDEV, _DEV = 256, 28, 128, 136  # the size of struct statx, and where these fields are
_KCMP, _KCMP_FILES = {"x86_64": 312, "aarch64": 272}.get(platform.machine(), 0), 2
_libc = ctypes.CDLL(None, use_errno=True)


def character_device(name: str, folder: int, *, follows: bool) -> int:
    """Return the number of the character device that a name in an open folder is; 0 for another file. Raises: OSError.

    `follows` for links of procfs, which lead to the file itself and not to a path.
    """
    found = _statx(name, folder, 0 if follows else _NOFOLLOW)
    mode = int.from_bytes(found[_MODE : _MODE + 2], "little")
    return _number(found, _RDEV) if stat.S_ISCHR(mode) else 0


def file_system(fd: int) -> tuple[int, int]:
    """Return the device numbers of the file system of an open file, as mountinfo has them. Raises: OSError."""
    number = _number(_statx("", fd, _EMPTY_PATH), _DEV)
    return os.major(number), os.minor(number)


def have_same_files(one: int, other: int) -> bool:
    """Return whether two threads have one table of open files. False if that can't be determined."""
    return bool(_KCMP) and _libc.syscall(_KCMP, one, other, _KCMP_FILES, 0, 0) == 0


def _statx(name: str, folder: int, flags: int) -> bytes:
    buffer = ctypes.create_string_buffer(_BYTES)
    if _libc.statx(folder, os.fsencode(name), flags | _DONT_SYNC | _NO_AUTOMOUNT, _TYPE, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return buffer.raw


def _number(found: bytes, at: int) -> int:
    major, minor = (int.from_bytes(found[i : i + 4], "little") for i in (at, at + 4))
    return os.makedev(major, minor)
