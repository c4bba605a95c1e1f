"""What a container needs of AMD's GPUs: /dev/kfd once, and the card and the render node of each device.

In: facts and the dev root. Out: edits. Libraries come with the container's image, so nothing is mounted.

Source: AMD's ROCm containers documentation (the nodes).
"""

from __future__ import annotations

from dra_driver.hardware.amd import kfd
from dra_driver.hardware.amd.facts import AmdGpu
from dra_driver.hardware.node_edits import edits_of_nodes, node_missing
from dra_driver.hardware.port import Roots
from dra_driver.model.edits import Edits


def common_edits(roots: Roots) -> Edits:
    """Return the compute driver's node, which all devices share; nothing where the kernel has no compute driver.

    Raises: HardwareError("hardware.node-missing", retry LATER).
    """
    return edits_of_nodes(["kfd"], roots) if kfd.is_there(roots) else Edits()


def device_edits(gpu: AmdGpu, roots: Roots) -> Edits:
    """Return the nodes of one device. Raises: HardwareError("hardware.node-missing", retry LATER)."""
    if gpu.minor < 0:
        raise node_missing(f"the render node of {gpu.pci_address} {gpu.part}".rstrip())
    return edits_of_nodes(gpu.nodes, roots)
