"""Users of device nodes: the processes of the host that have one open, by the node's number and not by its path.

A container has nodes of its own with the same numbers, so paths prove nothing. An open file of the display system also
shows which GPU it belongs to, whichever node it was opened by (a partition's, a lease). The processes of all pods are
seen only in the host's process namespace.
Source: proc(5), /proc/PID/fd; Linux, Documentation/gpu/drm-usage-stats.rst, drm-pdev.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from dra_driver.hardware.pci import entries_of, function_folder, read_text
from dra_driver.hardware.port import Roots

_NULL = os.makedev(1, 3)  # of simulated nodes: every process has /dev/null open
_Identity = tuple[str, int, int]
_PCI_DEVICE = re.compile(r"^drm-pdev:\s*([0-9a-f:.]{12,17})$", re.MULTILINE)


def node_names(roots: Roots, address: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes below /dev of a GPU: those of its vendor, and those of the display system."""
    drawn = entries_of(function_folder(roots, address) / "drm")
    return tuple(dict.fromkeys((*known, *(f"dri/{name}" for name in drawn if name.startswith(("card", "render"))))))


@runtime_checkable
class ComputeLister(Protocol):
    """Optional ability: hardware whose kernel driver lists the programs that compute on a GPU."""

    def computing_on(self, address: str) -> frozenset[int]:
        """Return the ids of these processes, as the host has them."""


def processes_with(
    roots: Roots, names: Iterable[str], drawn_on: str = "", numbers: Iterable[int] = ()
) -> tuple[int, ...]:
    """Return the ids of the processes that have one of these nodes below /dev open, as far as /proc shows them.

    With `drawn_on`, a PCI address, also those with a file of the display system that belongs to this GPU; with
    `numbers`, those of character devices, also the processes that have one of these open, whatever its name.
    """
    wanted = frozenset(filter(None, (_identity(f"{roots.dev}/{name}") for name in names)))
    wanted |= {("device", number, 0) for number in numbers if number != _NULL}
    if drawn_on:
        wanted |= {_drawn(drawn_on)}
    if not wanted:
        return ()
    processes = (name for name in entries_of(Path(roots.proc)) if name.isdigit())
    return tuple(sorted(int(name) for name in processes if not wanted.isdisjoint(_open_of(f"{roots.proc}/{name}"))))


def _open_of(process: str) -> Iterator[_Identity]:
    for name in entries_of(Path(process, "fd")):
        path = f"{process}/fd/{name}"
        try:
            target = os.readlink(path)  # noqa: PTH115
        except OSError:
            continue
        if "/dev/" not in target:  # other files may be on a file server that no longer answers
            continue
        if (found := _identity(path)) is not None:
            yield found
        if "/dri/" in target and (drm := _PCI_DEVICE.search(read_text(f"{process}/fdinfo/{name}") or "")):
            yield _drawn(drm[1])


def _drawn(address: str) -> _Identity:
    return (f"drm {address}", 0, 0)


def _identity(path: str) -> _Identity | None:
    """Return what identifies the device behind a file; None for /dev/null, and for a file that no longer exists."""
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return None
    if stat.S_ISCHR(found.st_mode):
        return None if found.st_rdev == _NULL else ("device", found.st_rdev, 0)
    return ("file", found.st_dev, found.st_ino)
