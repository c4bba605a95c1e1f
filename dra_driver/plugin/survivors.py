"""Survivors: pods whose containers outlive the Unprepare of their claim, so that its devices wait for them.

In: UIDs of pods. Out: those that may live, by the kubelet's folders, and those that do: a pod lives while a process
sees a mount that comes from the kubelet's folder of that pod; /etc/hosts and the termination log of each container do.
Source: proc(5), /proc/pid/mountinfo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

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
            namespace = str((process / "ns/mnt").readlink())
        except OSError:
            namespace = ""
        if namespace in seen:
            continue
        try:
            mounts = (process / "mountinfo").read_bytes()
        except OSError:  # it has ended; a zombie has no mounts either
            continue
        if namespace and mounts:
            seen.add(namespace)
        if b"/pods/" in mounts:
            found.update(_sources(mounts, uids))
    return frozenset(found)


def _sources(mounts: bytes, uids: Collection[str]) -> Iterator[str]:
    """Give the pods from whose folder a mount comes.

    Where the mount point names the pod too, it is the kubelet's own view of its volumes, or that of somebody who has
    mounted the kubelet's folder.
    """
    for line in mounts.decode(errors="replace").splitlines():
        columns = line.split(" ", 5)
        if len(columns) < 6:
            continue
        root, point = columns[3], columns[4]
        yield from (uid for uid in uids if f"/pods/{uid}/" in root and uid not in point)
