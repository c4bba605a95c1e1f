"""Edits for device nodes: each with its current device numbers, and its group if only the group has access.

In: names below /dev, and the dev root. Out: edits. A node's group is added to a container's process only if the file
mode requires that: many distributions give render nodes to a group of their own. Source: CDI 0.7.0 (additionalGids).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from dra_driver.hardware.port import Roots
from dra_driver.model.edits import DeviceNode, Edits
from dra_driver.model.errors import HardwareError, Retry

_FOR_ALL = stat.S_IROTH | stat.S_IWOTH


def edits_of_nodes(names: Iterable[str], roots: Roots) -> Edits:
    """Return the edits of these nodes. Raises: HardwareError("hardware.node-missing", retry LATER)."""
    nodes, groups = [], set()
    for name in names:
        try:
            status = os.stat(f"{roots.dev}/{name}")  # noqa: PTH116 - faster, and a Prepare waits for it
        except OSError as error:
            raise node_missing(f"/dev/{name}") from error
        if not stat.S_ISCHR(status.st_mode):
            raise node_missing(f"/dev/{name} as a device")
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


def node_missing(what: str) -> HardwareError:
    """Return the error for a node that does not exist yet."""
    hint = "the kernel's log says why; reload the GPU's driver or reboot the node"
    return HardwareError("node-missing", f"{what} does not exist", hint=hint, retry=Retry.LATER)
