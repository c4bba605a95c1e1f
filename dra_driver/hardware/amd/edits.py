"""What a container needs of AMD's GPUs: /dev/kfd once, and the card and the render node of each device.

In: facts and the dev root. Out: edits. Libraries come with the container's image, so nothing is mounted. A node is
written down with the numbers that it has now. Its group is added to a container's process only where its mode shuts
others out: many distributions give render nodes to a group of their own.

Source: AMD's ROCm containers documentation (the nodes); CDI 0.7.0 (additionalGids).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from dra_driver.hardware.amd import kfd
from dra_driver.hardware.amd.facts import AmdGpu
from dra_driver.hardware.port import Roots
from dra_driver.model.edits import DeviceNode, Edits
from dra_driver.model.errors import HardwareError, Retry

_FOR_ALL = stat.S_IROTH | stat.S_IWOTH


def common_edits(roots: Roots) -> Edits:
    """Return the compute driver's node, which all devices share; nothing where the kernel has no compute driver.

    Raises: HardwareError("hardware.node-missing", retry LATER).
    """
    return _edits(["kfd"], roots) if kfd.is_there(roots) else Edits()


def device_edits(gpu: AmdGpu, roots: Roots) -> Edits:
    """Return the nodes of one device. Raises: HardwareError("hardware.node-missing", retry LATER)."""
    if gpu.minor < 0:
        raise _missing(f"the render node of {gpu.pci_address} {gpu.part}".rstrip())
    return _edits(gpu.nodes, roots)


def _edits(names: Iterable[str], roots: Roots) -> Edits:
    nodes, groups = [], set()
    for name in names:
        try:
            status = os.stat(f"{roots.dev}/{name}")  # noqa: PTH116 - in the time of a Prepare
        except OSError as error:
            raise _missing(f"/dev/{name}") from error
        if not stat.S_ISCHR(status.st_mode):
            raise _missing(f"/dev/{name} as a device")
        permissions = stat.S_IMODE(status.st_mode)
        nodes.append(
            DeviceNode(
                f"/dev/{name}",
                os.major(status.st_rdev),
                os.minor(status.st_rdev),
                host_path="" if roots.dev == "/dev" else f"{roots.dev}/{name}",
                file_mode=permissions,
                gid=status.st_gid,
            )
        )
        if permissions & _FOR_ALL != _FOR_ALL and status.st_gid:
            groups.add(status.st_gid)
    return Edits(tuple(nodes), additional_gids=tuple(sorted(groups)))


def _missing(what: str) -> HardwareError:
    return HardwareError("node-missing", f"{what} does not exist", retry=Retry.LATER)
