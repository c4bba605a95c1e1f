"""Running pods: pods whose containers outlive the Unprepare of their claim, so that its devices must wait for them.

In: UIDs of pods. Out: the pods that may run, judged by the kubelet's folders, and the pods that do run, judged by
processes. A pod runs while a process sees a mount that comes from the kubelet's folder of that pod; every container has
such mounts for /etc/hosts and its termination log.

Source: proc(5), /proc/pid/mountinfo.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_MOUNTS_BYTES = 1 << 20
_POD = re.compile(r"/pods/([0-9A-Fa-f-]{32,36})/")
PROC = Path("/proc")  # the kernel's own folder, even where another folder replaces it in tests


def pods_with_folders(uids: Iterable[object], pods: Path) -> Iterator[str]:
    """Yield the pods of which the kubelet still has a folder; if its folders can't be seen, yield all of them."""
    for uid in map(str, uids):
        if uid and "/" not in uid and ((pods / uid).exists() or not pods.is_dir()):
            yield uid


def pods_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Return the pods that have a live process. One process of each mount namespace is examined. Raises: OSError."""
    found: set[str] = set()
    seen: set[str] = set()
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            namespace, mounts = _view(process, seen)
        except OSError:  # the process has ended; a zombie has no mounts either
            continue
        if namespace in seen:
            continue
        if namespace and mounts:
            seen.add(namespace)
        if b"/pods/" in mounts:
            found.update(_sources(mounts, uids))
    return frozenset(found)


def _view(process: Path, seen: Collection[str]) -> tuple[str, bytes]:
    """Return the mount namespace of one process, and the first of its mounts, of which a container may have many more.

    Both are read through one descriptor, so that another process with a reused number can't come between. Raises:
    OSError.
    """
    fd = os.open(process, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            namespace = os.readlink("ns/mnt", dir_fd=fd)
        except OSError:
            namespace = ""
        if namespace in seen:
            return namespace, b""
        with os.fdopen(os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
            return namespace, file.read(_MOUNTS_BYTES)
    finally:
        os.close(fd)


def _sources(mounts: bytes, uids: Collection[str]) -> Iterator[str]:
    """Yield the pods from whose folder a mount comes.

    Where the mount point contains the pod's UID too, the mount is the kubelet's own view of its volumes, or that of a
    process that has mounted the kubelet's folder. Only the first pod in the source counts: a pod chooses what follows
    it, inside a volume of its own.
    """
    for line in mounts.decode(errors="replace").splitlines():
        columns = line.split(" ", 5)
        first = _POD.search(columns[3]) if len(columns) == 6 else None
        if first and first[1] in uids and first[1] not in columns[4]:
            yield first[1]
