"""Device nodes by which a virtual machine gets a function: of its IOMMU group, or its own below iommufd.

In: roots, and the nodes that the kernel created. Out: nodes for a container. Nothing waits: the kernel creates them
before a bind returns.
Source: Linux, Documentation/driver-api/vfio.rst, "IOMMUFD and VFIO device cdev".
"""

from __future__ import annotations

import os
from pathlib import Path

from dra_driver.hardware.passthrough.readiness import has_iommufd
from dra_driver.hardware.pci import entries_of, function_folder
from dra_driver.hardware.port import Roots
from dra_driver.model.edits import DeviceNode
from dra_driver.model.errors import HardwareError, Retry

_DEV = "/dev"


def function_node(roots: Roots, address: str, group: int, *, prefers_iommufd: bool) -> DeviceNode:
    """Return the node of a function that a VFIO driver has. Raises: HardwareError("hardware.node-missing", LATER)."""
    return _node(roots, function_node_name(roots, address, group, prefers_iommufd=prefers_iommufd))


def api_node(roots: Roots, *, prefers_iommufd: bool) -> DeviceNode:
    """Return the node by which a virtual machine maps memory. Raises: HardwareError("hardware.node-missing", LATER)."""
    return _node(roots, "iommu" if prefers_iommufd and has_iommufd(roots) else "vfio/vfio")


def function_node_name(roots: Roots, address: str, group: int, *, prefers_iommufd: bool) -> str:
    """Return the name of a function's node below /dev. Raises: HardwareError("hardware.node-missing", LATER)."""
    if not (prefers_iommufd and has_iommufd(roots)):
        return f"vfio/{group}"
    found = next((n for n in entries_of(function_folder(roots, address) / "vfio-dev") if n.startswith("vfio")), None)
    if found is None:
        text = f"the kernel has iommufd, but created no device node for {address}"
        raise HardwareError("node-missing", text, hint="use backendPolicy LegacyOnly", retry=Retry.LATER)
    return f"vfio/devices/{found}"


def every_node_name(roots: Roots, address: str, group: int) -> tuple[str, ...]:
    """Return the names of all nodes below /dev by which a virtual machine may have a function open."""
    own = entries_of(function_folder(roots, address) / "vfio-dev")
    return (f"vfio/{group}", *(f"vfio/devices/{name}" for name in own))


def _node(roots: Roots, name: str) -> DeviceNode:
    path = Path(roots.dev, name)
    try:
        found = path.stat()
    except OSError as error:
        raise HardwareError("node-missing", f"{_DEV}/{name} does not exist", retry=Retry.LATER) from error
    return DeviceNode(
        f"{_DEV}/{name}",
        os.major(found.st_rdev),
        os.minor(found.st_rdev),
        host_path="" if roots.dev == _DEV else str(path),
    )
