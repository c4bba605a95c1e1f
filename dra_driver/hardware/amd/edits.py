"""Edits for containers with AMD's GPUs: /dev/kfd once, and the card and the render node of each device.

In: facts and the dev root. Out: edits. Libraries come with the container's image, so nothing is mounted.

Source: AMD's ROCm containers documentation (the nodes).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

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


def compute_unit_edits(units: Sequence[int]) -> Edits:
    """Return the variable by which the runtime keeps the programs of a container to these units of its first GPU.

    Source: ROCm documentation, "Setting the number of compute units" (HSA_CU_MASK: GPUs, a colon, ranges of units).

    >>> compute_unit_edits([0, 1, 2, 8, 9]).env
    ('HSA_CU_MASK=0:0-2,8-9',)
    """
    runs = [[unit for _, unit in run] for _, run in groupby(enumerate(units), lambda pair: pair[1] - pair[0])]
    ranges = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return Edits(env=(f"HSA_CU_MASK=0:{ranges}",))
