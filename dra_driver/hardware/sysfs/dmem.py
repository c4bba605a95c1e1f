"""dmem: the kernel's cgroup controller for the memory of devices, which limits how much of it a cgroup may have.

In: the root of all cgroups, PCI addresses, folders of cgroups. Out: regions and their sizes; limits that are set, and
read back. A cgroup can have a limit only if every cgroup above it enables the controller for its children
(`cgroup.subtree_control`). That is done here, from the root down, and never undone: others may rely on it, and undoing
it would end their limits. A limit holds for what the processes below the cgroup allocate from then on.

Source: Linux Documentation/admin-guide/cgroup-v2, "DMEM" (6.14 and newer), "Controlling Controllers".
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.pci import MAX_MEMORY_BYTES, read_text
from dra_driver.hardware.port import Roots
from dra_driver.model.errors import HardwareError, Retry

CGROUPS = "fs/cgroup"  # below sysfs
_CONTROLLER = "dmem"
_LIMITS, _CONTROLLERS, _PASSED_ON = "dmem.max", "cgroup.controllers", "cgroup.subtree_control"
_PAGE_BYTES = 4096  # the kernel counts in pages
_HINT = "memory limits need Linux 6.14 with CONFIG_CGROUP_DMEM, cgroup v2, and its tree writable for the agent"


@dataclass(frozen=True, slots=True)
class Region:
    """A region of a device's memory that can be limited: its name ("drm/0000:03:00.0/vram") and its size in bytes."""

    name: str
    capacity: int


def own_memory(roots: Roots, address: str) -> tuple[Region, ...]:
    """Return the regions of a GPU's own memory; none where the kernel has no such controller or region.

    amdgpu calls the region vram, xe has one for each tile (vram0 …).
    """
    text = read_text(Path(roots.sys, CGROUPS, "dmem.capacity")) or ""
    found = re.findall(rf"^(drm/{re.escape(address)}/vram\d*) (\d{{1,20}})$", text, re.MULTILINE)
    return tuple(Region(name, int(size)) for name, size in found if 0 < int(size) < MAX_MEMORY_BYTES)


def dmem_capacity(roots: Roots, address: str) -> int | None:
    """Return how many bytes of a GPU's own memory the root cgroup can hand out, or None if it does not report that."""
    total = sum(region.capacity for region in own_memory(roots, address))
    return total if 0 < total < MAX_MEMORY_BYTES else None


def is_offered(roots: Roots) -> bool:
    """Return whether the root of the cgroups offers the controller."""
    return _CONTROLLER in (read_text(Path(roots.sys, CGROUPS, _CONTROLLERS)) or "").split()


def set_limit(region: Region, cgroup: Path, limit: int | None) -> None:
    """Limit a cgroup to `limit` bytes of a region, None for no limit. A cgroup that is gone has nothing to be limited.

    Raises: HardwareError("hardware.memory-limit-unsupported", "hardware.no-permission", "hardware.memory-limit-failed",
    LATER).
    """
    if limit is None and not (cgroup / _LIMITS).exists():
        return
    try:
        _pass_on(cgroup)
        write_kernel_file(cgroup / _LIMITS, f"{region.name} {'max' if limit is None else limit}\n")
    except OSError as exc:
        if not cgroup.is_dir():
            return
        raise _refusal(region, cgroup, exc) from exc
    found = limit_of(region, cgroup)
    if cgroup.is_dir() and found != (None if limit is None else limit // _PAGE_BYTES * _PAGE_BYTES) and found != limit:
        text = f"the limit of {region.name} for {cgroup} reads {found} after {limit} was written"
        raise HardwareError("memory-limit-failed", text, retry=Retry.LATER)


def limit_of(region: Region, cgroup: Path) -> int | None:
    """Return the limit of a cgroup in bytes; None if it has none, whatever the reason."""
    text = read_text(cgroup / _LIMITS) or ""
    found = re.search(rf"^{re.escape(region.name)} (\d{{1,20}})$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _pass_on(cgroup: Path) -> None:
    """Enable the controller for the children of every cgroup above this one. Raises: OSError, HardwareError."""
    above = []
    for folder in cgroup.parents:
        if not (folder / _PASSED_ON).exists():
            break
        above.append(folder)
    for folder in reversed(above):
        if _CONTROLLER in (read_text(folder / _PASSED_ON) or "").split():
            continue
        if _CONTROLLER not in (read_text(folder / _CONTROLLERS) or "").split():
            raise HardwareError("memory-limit-unsupported", f"{folder} has no controller {_CONTROLLER}", hint=_HINT)
        write_kernel_file(folder / _PASSED_ON, f"+{_CONTROLLER}\n")


def write_kernel_file(path: Path, text: str) -> None:
    """Write a file of the kernel with a single call; a file that does not exist is not created. Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _refusal(region: Region, cgroup: Path, exc: OSError) -> HardwareError:
    text = f"the memory of {region.name} can't be limited for {cgroup}: {exc.strerror}"
    if exc.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return HardwareError("no-permission", text, hint=_HINT)
    if exc.errno in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}:
        return HardwareError("memory-limit-unsupported", text, hint=_HINT)
    return HardwareError("memory-limit-failed", text, retry=Retry.LATER)
