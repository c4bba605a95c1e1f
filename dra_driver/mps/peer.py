"""Ask the kernel which process listens on a daemon's control socket.

In: the socket's path, the process that should listen. Out: why it is not that process, or "". A client that is root in
its container can put another socket, a link or a FIFO there: none of them is followed, waited for, or trusted.
Source: unix(7), SO_PEERCRED; socket(7), SO_PEERPIDFD (Linux 6.5).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from dra_driver.mps import processes
from dra_driver.mps.processes import ProcessIdentity

_SO_PEERPIDFD = 77
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def fault(path: Path, process: ProcessIdentity) -> str:
    """Return "" if `process` listens at `path`, else the reason why nothing must be sent there."""
    try:
        pid, uid = _listener(path)
    except OSError as exc:
        return f"no process answers at {path}: {exc.strerror}"
    if (pid, uid) == (process.pid, os.geteuid()) and process.is_alive():
        return ""
    return f"process {pid} of user {uid} listens at {path}, not the MPS control daemon {process.pid}"


def listener(path: Path) -> ProcessIdentity | None:
    """Return the process of our user that listens at `path`, or None if there is none."""
    try:
        pid, uid = _listener(path)
    except OSError:
        return None
    return processes.identify(pid) if uid == os.geteuid() else None


def _listener(path: Path) -> tuple[int, int]:
    """Return the listener's pid and user; the pid is 0 if that process has ended. Raises: OSError."""
    fd = os.open(path, _PATH)
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
            asking.connect(f"/proc/self/fd/{fd}")
            pid, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return (pid if _lives(asking) else 0), uid
    finally:
        os.close(fd)


def _lives(asking: socket.socket) -> bool:
    """Return whether the listener still runs, so that its pid can't belong to another process by now.

    Before Linux 6.5 this can't be determined, and true is returned.
    """
    try:
        (fd,) = struct.unpack("i", asking.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))
    except OSError as exc:
        return exc.errno not in {errno.ESRCH, errno.EINVAL}
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as file:  # noqa: PTH123
            return b"Pid:\t-1\n" not in file.read()
    except OSError:
        return True
    finally:
        with suppress(OSError):
            os.close(fd)
