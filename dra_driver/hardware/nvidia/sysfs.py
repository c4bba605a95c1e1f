"""What sysfs, procfs and /dev reveal about NVIDIA GPUs without the library: PCI functions, NUMA, driver version, nodes.

In: roots. Out: plain values. Never opens a device, never writes, and never raises for a missing file: a node without a
driver, WSL2 and a guest with a virtual GPU lack most of these files.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dra_driver.hardware.pci import entries_of, read_at_once, read_driver, read_hex, read_text
from dra_driver.hardware.port import Roots
from dra_driver.model.fifo_cache import FifoCache
from dra_driver.model.names import normal_pci_address
from dra_driver.model.stamp import Stamp, stamp_of

NVIDIA_VENDOR = 0x10DE
GPU_CLASSES = (0x0300, 0x0302)  # VGA controller, 3D controller
_VERSION = re.compile(r"\s(\d+\.\d+(?:\.\d+)*)\s")
Nodes = tuple[tuple[str, int], ...]  # names and numbers
_kept_nodes: FifoCache[str, tuple[Stamp, Nodes]] = FifoCache(4)
_SETTLED_NS = 2 * 10**9  # far more than a tick of the clock with which file systems date their changes
_MINOR = re.compile(rb"^Device Minor:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One GPU on the bus. `driver` is the kernel driver bound to it, or None."""

    address: str
    driver: str | None
    is_virtual: bool  # whether it is an SR-IOV virtual function


def own_cgroup(roots: Roots) -> str:
    """Return the folder of this process's cgroup, or the root of all cgroups where it can't be determined."""
    lines = (read_text(Path(roots.proc) / "self/cgroup") or "").splitlines()
    below = next((line.removeprefix("0::") for line in lines if line.startswith("0::/")), "/")
    return f"{roots.sys}/fs/cgroup{below}".rstrip("/")


def read_pci_functions(roots: Roots) -> tuple[PciFunction, ...]:
    """Return the GPUs on the PCI bus in address order, whatever driver they have.

    Source: Linux sysfs-bus-pci; PCI class codes 03.00 and 03.02.
    """
    found = []
    try:
        with os.scandir(os.path.join(roots.sys, "bus/pci/devices")) as entries:  # noqa: PTH118 - see _read_gpu_address
            for entry in entries:
                address = _read_gpu_address(entry.path, entry.inode())
                if address is not None:
                    is_virtual = os.path.islink(f"{entry.path}/physfn")  # noqa: PTH114
                    found.append(PciFunction(address, read_driver(entry.path), is_virtual))
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda function: function.address))


@lru_cache(maxsize=8192)
def _read_gpu_address(path: str, inode: int) -> str | None:  # noqa: ARG001 - a function that is put in anew has another
    """Return a PCI function's address if it is a GPU, else None.

    The result is cached, because servers have hundreds of functions and each needs to be read only once.
    """
    function = Path(path)
    if read_hex(function / "vendor") != NVIDIA_VENDOR or read_hex(function / "class") >> 8 not in GPU_CLASSES:
        return None
    try:
        return normal_pci_address(function.name)
    except ValueError:
        return None


def read_driver_version(roots: Roots) -> str | None:
    """Return the loaded kernel driver's version as the driver writes it ("580.65.06"), or None if none is loaded."""
    path = f"{roots.sys}/module/nvidia/version"
    stamp = stamp_of(path)
    version = _read_version(path, stamp) if stamp is not None else None
    if version:
        return version
    match = _VERSION.search((read_text(f"{roots.proc}/driver/nvidia/version") or "") + " ")
    return match.group(1) if match else None


@lru_cache(maxsize=4)
def _read_version(path: str, stamp: Stamp) -> str | None:  # noqa: ARG001 - a module loaded anew has another file
    """Return a kernel module's version, which each Prepare needs. Sysfs has new files after each load of a module."""
    return read_text(path)


def read_minor(roots: Roots, address: str) -> int | None:
    """Return the minor number that the kernel driver assigned to a GPU, or None when it is not reported."""
    match = _MINOR.search(read_at_once(f"{roots.proc}/driver/nvidia/gpus/{address}/information"))
    return int(match.group(1)) if match else None


def read_driven_gpus(roots: Roots) -> tuple[str, ...]:
    """Return the PCI addresses that the loaded kernel driver drives."""
    return tuple(entries_of(Path(roots.proc, "driver/nvidia/gpus")))


def read_nodes(roots: Roots) -> Nodes:
    """Return NVIDIA's nodes below the dev root with their device numbers (major and minor in one)."""
    names = (name for name in entries_of(Path(roots.dev)) if name.startswith("nvidia"))
    return _numbered(roots, names) + _capability_nodes(roots)


def _capability_nodes(roots: Roots) -> Nodes:
    """Return the nodes of MIG capabilities, of which there are hundreds.

    They are read again only if their folder has changed, which it does whenever a node is made, removed or replaced.
    Right after a change the folder's time proves nothing, because a second change may leave it as it is.
    """
    path = f"{roots.dev}/nvidia-caps"
    stamp = stamp_of(path)
    kept = _kept_nodes.get(path)
    if kept is not None and kept[0] == stamp:
        return kept[1]
    nodes = _numbered(roots, (f"nvidia-caps/{name}" for name in entries_of(Path(path))))
    if stamp is not None and stamp.mtime_ns < time.time_ns() - _SETTLED_NS:
        _kept_nodes.keep(path, (stamp, nodes))
    return nodes


def _numbered(roots: Roots, names: Iterable[str]) -> Nodes:
    nodes = []
    for name in names:
        try:
            nodes.append((name, os.stat(f"{roots.dev}/{name}").st_rdev))  # noqa: PTH116 - hundreds, every two seconds
        except OSError:
            continue
    return tuple(nodes)


def read_majors(roots: Roots) -> tuple[str, ...]:
    """Return the lines of /proc/devices that list NVIDIA's majors."""
    text = read_text(Path(roots.proc, "devices")) or ""
    return tuple(sorted({line.strip() for line in text.splitlines() if "nvidia" in line}))


def has_driver_traces(roots: Roots) -> bool:
    """Return whether there are traces of a driver, even if no PCI function is visible."""
    return Path(roots.proc, "driver/nvidia").is_dir() or Path(roots.dev, "nvidiactl").exists()
