"""Devices as the observer counts them: the slices of each GPU's memory, whoever has them and by whichever node.

In: names of devices as they are published, and numbers of device nodes. Out: units, of which no two claims may have the
same one at a time, unless both have a share of it. Nothing of the driver is used here; the numbers are those that the
profile (`machine`) makes the simulated hardware have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

MAJOR = 136  # of terminals: the nodes are ones that processes can really open (`terminals`)
FIRST_MINOR = 8  # of the first GPU; the terminals that people use have smaller numbers than its nodes
HOT, CUT, SHARED, PASSED = (f"0000:0{number}:00.0" for number in (1, 2, 3, 4))
ADDRESSES = (HOT, CUT, SHARED, PASSED)
SLICES = 8
SIZES = {"1g.10gb": 1, "1g.20gb": 2, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 4, "7g.80gb": 8}
_MIG = re.compile(r"(?P<gpu>gpu-[-0-9a-f]+)-mig-(?P<profile>[0-9a-z]+)-(?P<id>\d+)-(?P<start>\d+)")
OF_A_GPU = 32  # how many numbers a GPU has: its node, two for each instance, the last one for its VFIO group
_COMMON = (4096 * OF_A_GPU, 4096 * OF_A_GPU + 1, 1 << 18)

Unit = tuple[str, int]  # a GPU's address, and a slice of its memory
Partition = tuple[str, str, int]  # a GPU's address, the profile, and the first slice


def gpu_name(address: str) -> str:
    return f"gpu-{address.replace(':', '-').replace('.', '-')}"


_BY_NAME = {gpu_name(address): address for address in ADDRESSES}


def address_of(device: str) -> str:
    """Return the address of a published device's GPU; "" for a device that is none of this node's."""
    name = re.match(r"gpu-[0-9a-f]{4}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7]", device)
    return _BY_NAME.get(name[0], "") if name else ""


def partition_of(device: str) -> Partition | None:
    """Return the partition that a published device is; None for others, and for profiles that are not counted."""
    found = _MIG.fullmatch(device)
    profile = next((name for name in SIZES if found and name.replace(".", "") == found["profile"]), "")
    return (_BY_NAME[found["gpu"]], profile, int(found["start"])) if found and profile else None


def is_passed(device: str) -> bool:
    """Return whether a device is a GPU for virtual machines."""
    return device.endswith("-vfio")


def units_of(devices: Iterable[str]) -> set[Unit]:
    """Return what devices take of their GPUs."""
    found: set[Unit] = set()
    for device in devices:
        partition = partition_of(device)
        first, size = (partition[2], SIZES[partition[1]]) if partition else (0, SLICES)
        found.update((address_of(device), index) for index in range(first, first + size))
    return found


def nodes_of(device: str) -> set[int]:
    """Return the numbers of the nodes that a container with this device has, besides those that all have."""
    address = address_of(device)
    if is_passed(device):
        return {_number(_group_minor(address))}
    partition = partition_of(device)
    if partition is None:
        return {_number(_minor_of(address))}
    cap = _minor_of(address, partition[2])
    return {_number(_minor_of(address)), _number(cap), _number(cap + 1)}


def units_of_nodes(numbers: Iterable[int], partitions: Iterable[Partition]) -> set[Unit]:
    """Return what a process may use that has these nodes open, while these partitions exist.

    A GPU's node alone gives the whole GPU; with the capability of an instance it gives that instance.
    """
    minors = {os.minor(number) for number in numbers if os.major(number) == MAJOR}
    found: set[Unit] = set()
    for address in ADDRESSES:
        firsts = {first for first in range(SLICES) if _minor_of(address, first) in minors}
        sizes = {start: SIZES[profile] for gpu, profile, start in partitions if gpu == address}
        for first in firsts:
            found.update((address, number) for number in range(first, first + sizes.get(first, 1)))
        if _group_minor(address) in minors or (_minor_of(address) in minors and not firsts):
            found.update((address, number) for number in range(SLICES))
    return found


def group_of(address: str) -> int:
    """Return a GPU's IOMMU group, whose number gives its node the last minor of the GPU's."""
    return FIRST_MINOR + ADDRESSES.index(address) + 1


def _group_minor(address: str) -> int:
    return group_of(address) * OF_A_GPU - 1


def _minor_of(address: str, start: int | None = None) -> int:
    """Return the minor of a GPU's node, or of the instance that begins at a slice of its memory."""
    first = (FIRST_MINOR + ADDRESSES.index(address)) * OF_A_GPU
    return first if start is None else first + 2 * start + 1


def _number(minor: int) -> int:
    return os.makedev(MAJOR, minor)


def is_common(number: int) -> bool:
    """Return whether a node is one that containers have besides those of their devices."""
    return os.major(number) == MAJOR and os.minor(number) in _COMMON
