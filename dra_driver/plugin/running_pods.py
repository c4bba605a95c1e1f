"""Survivors: pods whose containers outlive the Unprepare of their claim, so that its devices wait for them.

In: UIDs of pods. Out: those that may live, by the kubelet's folders, and those that do: a pod lives while a process
sees a mount that comes from the kubelet's folder of that pod; /etc/hosts and the termination log of each container do.
Source: proc(5), /proc/pid/mountinfo.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_MOUNTS_BYTES = 1 << 20
_POD = re.compile(r"/pods/([0-9A-Fa-f-]{32,36})/")
PROC = Path("/proc")  # processes are the kernel's own, whatever stands in for the rest of /proc


def pods_with_folders(uids: Iterable[object], pods: Path) -> Iterator[str]:
    """Return the pods that the kubelet still has a folder of; all of them where its folders can't be seen."""
    for uid in map(str, uids):
        if uid and "/" not in uid and ((pods / uid).exists() or not pods.is_dir()):
            yield uid


def pods_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Name the pods of which a process lives. One process of each mount namespace is looked at. Raises: OSError."""
    found: set[str] = set()
    seen: set[str] = set()
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            namespace, mounts = _view(process, seen)
        except OSError:  # it has ended; a zombie has no mounts either
            continue
        if namespace in seen:
            continue
        if namespace and mounts:
            seen.add(namespace)
        if b"/pods/" in mounts:
            found.update(_sources(mounts, uids))
    return frozenset(found)


def _view(process: Path, seen: Collection[str]) -> tuple[str, bytes]:
    """Read the mount namespace of one process and the first of its mounts: a container may have made many more.

    Both are read through one descriptor, so that no other process under the same number comes between. Raises: OSError.
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
    """Return the pods from whose folder a mount comes.

    Where the mount point names the pod too, it is the kubelet's own view of its volumes, or that of somebody who has
    mounted the kubelet's folder. Only the first pod that the source names counts: what follows is a pod's own choice,
    in a volume of its own.
    """
    for line in mounts.decode(errors="replace").splitlines():
        columns = line.split(" ", 5)
        first = _POD.search(columns[3]) if len(columns) == 6 else None
        if first and first[1] in uids and first[1] not in columns[4]:
            yield first[1]
