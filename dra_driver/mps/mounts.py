"""Mounts: a small tmpfs for what clients of a device can write, and a mount namespace with the daemon's own /dev/shm.

An MPS server and its clients communicate through files in /dev/shm, so they must see the same folder there, and clients
of another device must not see it. What clients write is limited in size, and is never on the node's disk. If the
supervisor may not mount, nothing is mounted.
Source: mount(2), unshare(2), mount_namespaces(7), tmpfs(5).
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import NamedTuple

from dra_driver.model.errors import SharingError

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_NOSYMFOLLOW = 0x2, 0x4, 0x8, 0x100
_CAP_SYS_ADMIN = 21
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class Size(NamedTuple):
    """The most that a tmpfs may hold, and the mode of its root folder."""

    bytes: int
    inodes: int
    mode: int


def are_permitted() -> bool:
    """Return whether this process may mount at all (CAP_SYS_ADMIN)."""
    try:
        words = Path("/proc/self/status").read_text().split()
        return bool(int(words[words.index("CapEff:") + 1], 16) >> _CAP_SYS_ADMIN & 1)
    except (OSError, ValueError):
        return False


def ensure_tmpfs(folder: Path, size: Size) -> None:
    """Mount a tmpfs on a folder unless one is mounted already. Raises: SharingError("sharing.mps-no-permission").

    Clients write there and this process is root, so symbolic links are not followed through this mount (Linux 5.10);
    inside containers they work as usual.
    """
    if not folder.is_mount():
        options = f"mode={size.mode:o},size={size.bytes},nr_inodes={size.inodes}"
        _mount("dra-driver-mps", folder, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_NOSYMFOLLOW, options)


def remove(folder: Path) -> None:
    """Unmount everything that is mounted on a folder, including mounts on top of each other. Raises: SharingError."""
    while folder.is_mount():
        if _libc.umount2(os.fsencode(folder), _MNT_DETACH) != 0:
            raise _refused(f"can't unmount {folder}")


def enter_private(root: Path, folder: Path, shm: Path) -> None:
    """Move the calling thread into a new mount namespace, with `shm` at /dev/shm and `root` as /.

    `folder` appears at its own path below `root` too. Later mounts and unmounts of the host still take effect, so that
    no pod's volume is kept busy. Call this only in a thread that ends afterwards.

    Raises: SharingError("sharing.mps-no-permission").
    """
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise _refused("can't make a mount namespace for the MPS daemon")
    _mount("none", Path("/"), None, _MS_REC | _MS_SLAVE, None)
    if root != Path("/"):
        _mount(str(folder), _made(root / folder.relative_to("/")), None, _MS_BIND | _MS_REC, None)
    _mount(str(shm), _made(root / "dev/shm"), None, _MS_BIND, None)
    if root != Path("/"):
        os.chroot(root)
    os.chdir("/")


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise SharingError(
            "mps-no-permission",
            f"folder {folder} can't be made: {exc.strerror}",
            hint="mount the driver root writable into the MPS supervisor",
        ) from exc
    return folder


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str | None) -> None:
    words = [os.fsencode(source), os.fsencode(target), kind and kind.encode(), flags, options and options.encode()]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[4]) != 0:
        raise _refused(f"can't mount {target}")


def _refused(text: str) -> SharingError:
    number = ctypes.get_errno()
    hint = "run the MPS supervisor privileged, with hostPID" if number in {errno.EPERM, errno.EACCES} else ""
    return SharingError("mps-no-permission", f"{text}: {os.strerror(number)}", hint=hint)
