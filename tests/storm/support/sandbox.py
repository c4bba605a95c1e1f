"""A sandbox for a storm: namespaces of its own for processes and mounts, and a file system in memory.

Everything ends with the first process: the kernel kills the processes of the namespace and removes its mounts, also if
that process was killed. The first process itself ends with the one that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

MS_NOSUID, MS_BIND, MS_REC, MS_PRIVATE, MS_REMOUNT = 2, 4096, 16384, 1 << 18, 32
CLONE_NEWNS = 0x00020000
_INSIDE = "STORM_SANDBOX"
_PLACES = ("/mnt", "/srv", "/media", "/opt")  # short paths, because names of sockets are short; empty on most machines
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_CAP_SYS_ADMIN = 21
_libc = ctypes.CDLL(None, use_errno=True)


def is_permitted() -> bool:
    """Return whether this process may make such a sandbox."""
    command = ["unshare", "--mount", "--pid", "--fork", "true"]
    return os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0


def enter(module: str) -> Path:
    """Go on as a new program in a sandbox, and return its empty folder; this returns only inside."""
    end_with_parent()
    place = os.environ.get(_INSIDE)
    if place is None:
        _go_on_inside(module)
    mount("tmpfs", place, "tmpfs")
    return Path(place)


def _go_on_inside(module: str) -> NoReturn:
    place = next(one for one in _PLACES if Path(one).is_dir() and not any(Path(one).iterdir()))
    flags = ["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--propagation", "private"]
    command = ["unshare", *flags, sys.executable, "-m", module, *sys.argv[1:]]
    os.execvpe(command[0], command, {**os.environ, _INSIDE: place})


def end_with_parent() -> None:
    """Make the kernel kill this process when the one that started it ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))


def leave_mounts() -> None:
    """Make this process have mounts of its own, as a container has them."""
    _checked(_libc.unshare(CLONE_NEWNS))
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def leave_administration() -> None:
    """Take from this process for good the right to administer the machine, which no container has by itself."""
    _checked(_libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0))


def mount(source: str, target: str | Path, kind: str, flags: int = 0, data: str = "") -> None:
    """Mount a file system. Raises: OSError."""
    words = [source.encode(), os.fsencode(target), kind.encode(), flags, data.encode()]
    _checked(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[4]))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
