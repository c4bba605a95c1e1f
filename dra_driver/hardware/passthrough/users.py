"""Users of device nodes: the processes of the host that have one open, by the node's number and not by its path.

A container has nodes of its own with the same numbers, so paths say nothing. The processes of all pods are seen only in
the host's process namespace.
Source: proc(5), /proc/PID/fd.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from dra_driver.hardware.pci import entries_of, function_folder
from dra_driver.hardware.port import Roots

_NULL = os.makedev(1, 3)  # of simulated nodes: every process has /dev/null open
_Identity = tuple[str, int, int]


def node_names(roots: Roots, address: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes below /dev of a GPU: those that its vendor knows, and those of the display system."""
    drawn = entries_of(function_folder(roots, address) / "drm")
    return tuple(dict.fromkeys((*known, *(f"dri/{name}" for name in drawn if name.startswith(("card", "render"))))))


def processes_with(roots: Roots, names: Iterable[str]) -> tuple[int, ...]:
    """Return the ids of the processes that have one of these nodes below /dev open, as far as /proc shows them."""
    wanted = frozenset(filter(None, (_identity(f"{roots.dev}/{name}") for name in names)))
    if not wanted:
        return ()
    processes = (name for name in entries_of(Path(roots.proc)) if name.isdigit())
    return tuple(sorted(int(name) for name in processes if not wanted.isdisjoint(_open_of(f"{roots.proc}/{name}/fd"))))


def _open_of(folder: str) -> Iterator[_Identity]:
    for name in entries_of(Path(folder)):
        path = f"{folder}/{name}"
        try:
            is_device = "/dev/" in os.readlink(path)  # noqa: PTH115 - other files may lie on a server that is gone
        except OSError:
            continue
        if is_device and (found := _identity(path)) is not None:
            yield found


def _identity(path: str) -> _Identity | None:
    """Return what makes two files one device; None for what is no device, or is gone."""
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return None
    if stat.S_ISCHR(found.st_mode):
        return None if found.st_rdev == _NULL else ("device", found.st_rdev, 0)
    return ("file", found.st_dev, found.st_ino)
