"""Device users: the processes that have device files of the GPUs open, so that the driver can't be unloaded.

In: the roots of procfs and /dev. Out: `DeviceUser`s. Only root sees the files that other users' processes have open. No
process is sent a signal.
Source: proc(5), /proc/PID/fd.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DEVICES = ("nvidia", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps/")


@dataclass(frozen=True, slots=True, order=True)
class DeviceUser:
    """A process that has a GPU's device file open; `command` is the name that the kernel has for it."""

    command: str
    pid: int

    def __str__(self) -> str:
        """Return the process as messages name it."""
        return f"{self.command} (PID {self.pid})"


def read_device_users(proc: Path, dev: Path) -> tuple[DeviceUser, ...]:
    """Return the processes that have NVIDIA's device files open, in order of name.

    Raises: PermissionError if this user is not root, and so may not look at the processes of other users.
    """
    if os.geteuid():
        raise PermissionError(f"the open files in {proc}")
    found = (_user(folder) for folder in proc.iterdir() if folder.name.isdecimal() and _has_device(folder, dev))
    return tuple(sorted(one for one in found if one is not None))


def _has_device(folder: Path, dev: Path) -> bool:
    starts = tuple(f"{dev}/{name}" for name in _DEVICES)
    return any(target.startswith(starts) for target in _targets(folder / "fd"))


def _targets(folder: Path) -> Iterator[str]:
    try:
        for entry in folder.iterdir():
            yield str(entry.readlink())
    except OSError:  # the process or the file has just gone, or is a kernel thread
        return


def _user(folder: Path) -> DeviceUser | None:
    try:
        return DeviceUser((folder / "comm").read_text(errors="replace").strip(), int(folder.name))
    except OSError:
        return None
