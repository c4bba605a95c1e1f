"""Process files: what the kernel reports of one process in procfs, read through one descriptor of its folder.

In: the folder of a process or thread. Out: its links and files, its pod by cgroup, and whether it may administer the
host. What has ended reads as empty.
Source: proc(5), capabilities(7), user_namespaces(7); Kubernetes names a pod's cgroup by its UID.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from dra_driver.plugin.prepare.running_pods import ENDED

_POD = re.compile(rb"pod([0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12}|[0-9a-fA-F]{32})")
_LIMITS = re.compile(rb"^CapBnd:\s*([0-9a-f]+)$", re.MULTILINE)
_BYTES = 1 << 20
_SYS_ADMIN = 1 << 21


@contextmanager
def opened_process(path: str) -> Iterator[int]:
    """Open a process, so that all that is read is of this one, whoever gets its id next. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def link_of(process: int, name: str) -> str | None:
    """Return where a link of a process leads; None if the process has ended, "" if that may not be seen."""
    try:
        return os.readlink(name, dir_fd=process)
    except OSError as error:
        return None if error.errno in ENDED else ""


def file_of(process: int, name: str) -> bytes:
    """Return the first MiB of a file of a process; nothing if the process has ended. Raises: OSError."""
    try:
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), "rb") as file:
            return file.read(_BYTES)
    except OSError as error:
        if error.errno not in ENDED:
            raise
        return b""


def pods_of_cgroup(process: int) -> frozenset[str]:
    """Return the pod to whose cgroup a process belongs, if there is one. Raises: OSError."""
    found = _POD.search(file_of(process, "cgroup"))
    return frozenset([found[1].decode().replace("_", "-").lower()] if found else ())


def may_administer(process: int) -> bool:
    """Return whether a process may administer the host: no container gets that right by itself.

    Its limits count, which no process can raise, and only in this user namespace: a new one has all rights in itself.
    """
    limits = _LIMITS.search(file_of(process, "status"))
    if limits is None or not int(limits[1], 16) & _SYS_ADMIN:
        return False
    return link_of(process, "ns/user") == os.readlink("/proc/self/ns/user")  # noqa: PTH115
