"""Running pods: finds pods whose containers outlive the Unprepare of their claim, which delays the devices' release.

In: UIDs of pods. Out: the pods that may run, according to the kubelet's folders, and the pods that do run, according to
processes. A pod runs as long as a process sees a mount that comes from the kubelet's folder of that pod; every
container has such mounts, for /etc/hosts and for its termination log.

Source: proc(5), /proc/pid/mountinfo.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_MOUNTS_BYTES = 1 << 20
_POD = re.compile(r"/pods/([0-9A-Fa-f-]{32,36})/")
PROC = Path("/proc")  # the kernel's own folder; tests replace it in some places
ENDED = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL})  # what the kernel answers about a process that has ended


def pods_with_folders(uids: Iterable[object], pods: Path) -> Iterator[str]:
    """Yield the pods that still have a folder of the kubelet's; if those folders can't be seen, yield all pods."""
    for uid in map(str, uids):
        if uid and "/" not in uid and ((pods / uid).exists() or not pods.is_dir()):
            yield uid


def pods_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Return the pods that have a live process, looking at one process per mount namespace.

    Raises: OSError if not all processes can be seen.
    """
    found: set[str] = set()
    seen: set[str] = set()
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            namespace, mounts = _view(process, seen)
        except OSError as error:
            if error.errno not in ENDED:  # a zombie has no mounts either
                raise
            continue
        if namespace in seen:
            continue
        if namespace and mounts:
            seen.add(namespace)
        found.update(pods_of_mounts(mounts).intersection(uids))
    return frozenset(found)


def _view(process: Path, seen: Collection[str]) -> tuple[str, bytes]:
    """Return the mount namespace of a process, and the first MiB of its list of mounts; no list if `seen` has it.

    Both are read through one descriptor, so that they can't be those of two processes with a reused pid.
    Raises: OSError.
    """
    fd = os.open(process, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            namespace = os.readlink("ns/mnt", dir_fd=fd)
        except OSError:  # not even root may see it of every process; then the mounts alone tell
            namespace = ""
        if namespace in seen:
            return namespace, b""
        with os.fdopen(os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
            return namespace, file.read(_MOUNTS_BYTES)
    finally:
        os.close(fd)


def pods_of_mounts(mounts: bytes) -> frozenset[str]:
    """Return the pods from whose folder one of these mounts, lines of mountinfo, comes.

    A mount whose mount point contains the pod's UID too does not count: the kubelet sees its volumes so, and a process
    that has mounted the kubelet's folder. Only the first UID in the source counts, because the rest of the path may be
    inside a volume, where a pod can choose any names.
    """
    found: set[str] = set()
    for line in mounts.decode(errors="replace").splitlines() if b"/pods/" in mounts else ():
        columns = line.split(" ", 5)
        first = _POD.search(columns[3]) if len(columns) == 6 else None
        if first and first[1] not in columns[4]:
            found.add(first[1])
    return frozenset(found)
