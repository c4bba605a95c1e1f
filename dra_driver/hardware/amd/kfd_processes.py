"""Processes that compute on a GPU, as AMD's compute driver lists them: those with memory or a queue on it.

In: roots and a PCI address. Out: process ids of the host. All programs open the same node, /dev/kfd, so open files do
not show which GPU a program computes on. A process has a file for each GPU, even for those that it does not use.
Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_process.c: kfd/proc/PID/vram_GPU and kfd/proc/PID/queues/ID/gpuid.
"""

from __future__ import annotations

from pathlib import Path

from dra_driver.hardware.amd.kfd import read_nodes
from dra_driver.hardware.pci import entries_of, read_text
from dra_driver.hardware.port import Roots

_KFD = "class/kfd/kfd"
_IDLE = {None, "", "0"}


def computing_on(roots: Roots, address: str) -> frozenset[int]:
    """Return the ids of the processes with memory or a queue on any part of a GPU."""
    kfd = Path(roots.sys, _KFD)
    nodes = [node.number for node in read_nodes(roots) if node.address == address]
    ids = {read_text(kfd / "topology/nodes" / str(number) / "gpu_id") for number in nodes} - _IDLE
    processes = (name for name in entries_of(kfd / "proc") if name.isdigit()) if ids else ()
    return frozenset(int(name) for name in processes if _uses(kfd / "proc" / name, ids))


def _uses(process: Path, ids: set[str | None]) -> bool:
    if any(read_text(process / f"vram_{gpu}") not in _IDLE for gpu in ids):
        return True
    return any(read_text(process / "queues" / queue / "gpuid") in ids for queue in entries_of(process / "queues"))
