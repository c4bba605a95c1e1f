"""A cgroup for each device's daemon, below the configured one; the process enters it before its program begins.

In: the folder of all daemons' cgroups (v2), a device's key. Out: the device's cgroup, and the processes in it. Only
root can put a process there, so membership proves that a daemon has started it. Never: moves a process other than the
calling one.
Source: kernel, Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dra_driver.model.errors import Retry, SharingError
from dra_driver.mps import processes
from dra_driver.mps.processes import ProcessIdentity

PROCESSES = "cgroup.procs"
HINT = "mount the host's cgroup v2 tree writable into the supervisor, or leave --mps-cgroup empty"


def has_version_2(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether cgroups v2 are mounted at all, or `path` lies in a cgroup; true if that can't be read."""
    nearest = next((folder for folder in (path, *path.parents) if os.path.isdir(folder)), "/")  # noqa: PTH112
    if Path(nearest, PROCESSES).exists():
        return True
    try:
        return any(line.split()[2:3] == ["cgroup2"] for line in mounts.read_text(errors="replace").splitlines())
    except OSError:
        return True


def make(path: Path) -> None:
    """Make a device's cgroup. Raises: SharingError("sharing.mps-cgroup")."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / PROCESSES).exists():
            return
        reason = "it is not a cgroup (v2)"
    except OSError as exc:
        reason = str(exc.strerror)
    raise SharingError("mps-cgroup", f"cgroup {path} can't be made: {reason}", hint=HINT, retry=Retry.LATER)


def enter(path: Path) -> None:
    """Move the calling process into the cgroup. Raises: OSError."""
    fd = os.open(path / PROCESSES, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def members(path: Path) -> list[ProcessIdentity]:
    """Return the running processes of a cgroup; none if there is no cgroup."""
    seen = [found for pid in _pids(path) if (found := processes.identify(pid))]
    still = _pids(path)  # a process identified above is a member only if its pid is still listed
    return [one for one in seen if one.pid in still and one.is_alive()]


def remove(path: Path) -> None:
    """Remove a device's cgroup; do nothing if it is busy or gone."""
    with suppress(OSError):
        path.rmdir()


def _pids(path: Path) -> set[int]:
    try:
        return {int(word) for word in (path / PROCESSES).read_text().split()} - {0}
    except (OSError, ValueError):
        return set()
