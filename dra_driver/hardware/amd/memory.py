"""The memory of a GPU or a partition.

For a GPU with its own memory it is the size in the topology, or else the driver's total, or else what the `dmem`
cgroup can hand out. For a GPU that uses the host's memory (an APU) it is what the topology lets programs allocate; the
part that the firmware set aside is smaller and does not show what fits. For a partition it is the size in the topology,
which under NPS1 is only its share by count, because all partitions reach all of the memory.

Source: Linux Documentation/gpu/amdgpu, Documentation/admin-guide/cgroup-v2 (dmem.capacity), kfd_topology.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.hardware.amd.kfd import KfdNode
from dra_driver.hardware.drm import DrmFunction
from dra_driver.hardware.pci import read_size
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs.dmem import dmem_capacity

_ALWAYS_INTEGRATED = frozenset({0x74A0})  # MI300A: its memory is the processors'
# Architectures that only APUs have; older kernels report the memory that the firmware set aside as theirs.
# Source: LLVM, User Guide for AMDGPU Backend, the processors of type APU.
_INTEGRATED_TARGETS = frozenset(
    ["gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103"]
    + [f"gfx115{n}" for n in range(4)]
)


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """Sizes in bytes: the memory set aside for the GPU, what it may use of the host's, and what `dmem` reports."""

    vram: int | None = None
    host: int | None = None
    dmem: int | None = None

    @classmethod
    def read(cls, address: str, function: DrmFunction | None, roots: Roots) -> MemoryFiles:
        """Return the sizes that the files of the GPU at an address show."""
        if function is None:
            return cls()
        vram, host = (read_size(function.folder / f"mem_info_{name}_total") for name in ("vram", "gtt"))
        return cls(vram, host, dmem_capacity(roots, address))


def is_integrated(node: KfdNode | None, files: MemoryFiles) -> bool | None:
    """Return whether a GPU uses the host's memory, or None if nothing shows it."""
    if node is None:
        return None
    if node.processor_cores or node.device_id in _ALWAYS_INTEGRATED or node.target in _INTEGRATED_TARGETS:
        return True
    if node.memory_bytes is None or files.vram is None or files.host is None:
        return None
    return node.memory_bytes == files.host != files.vram


def memory_of_whole(node: KfdNode | None, files: MemoryFiles) -> int | None:
    """Return the memory of a GPU that is one device, in bytes."""
    return (node.memory_bytes if node else None) or files.vram or files.dmem
