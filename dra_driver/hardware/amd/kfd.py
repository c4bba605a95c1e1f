"""The KFD topology: the compute driver's description of each GPU and of each partition.

In: roots. Out: `KfdNode`s in the order of their numbers. A partition that the topology lacks can't be used, even if
there are render nodes for it.

Source: Linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c (the files' format is one `name value` a line).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.pci import MAX_MEMORY_BYTES, entries_of, read_text
from dra_driver.hardware.port import Roots

_NODES = "class/kfd/kfd/topology/nodes"
_LAST_LOCATION, _LAST_DOMAIN = 0xFFFF, 0xFFFF_FFFF
_DEVICE_MEMORY_HEAPS = ("1", "2")  # heap types: frame buffer, visible to the host or not


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One GPU, or one partition of a GPU, in the topology.

    `part` is the partition's index within its GPU, 0 for a whole one. `memory_bytes` is the size of the memory bank: on
    an APU that is how much of the host's memory the GPU may use. `unique_id` and `hive` are in hexadecimal, None where
    they are 0.
    """

    number: int
    address: str  # of the GPU, function 0; "" if the topology does not report it
    part: int
    render_minor: int
    simd_count: int
    simd_per_cu: int
    device_id: int
    target: str | None  # "gfx942"
    unique_id: str | None
    hive: str | None
    processor_cores: int  # more than 0 for an APU of older kernels, which is one node with its processor
    memory_bytes: int | None

    @property
    def compute_units(self) -> int | None:
        """Return the number of compute units, or None if the topology does not report it."""
        return self.simd_count // self.simd_per_cu if self.simd_per_cu > 0 else None


def is_there(roots: Roots) -> bool:
    """Return whether the kernel offers its compute driver."""
    return os.path.exists(f"{roots.sys}/class/kfd")  # noqa: PTH110 - does not raise without the right to look


def read_nodes(roots: Roots) -> tuple[KfdNode, ...]:
    """Return the GPUs and partitions of the topology. The nodes of processors are left out."""
    folder = Path(roots.sys, _NODES)
    numbers = sorted(int(name) for name in entries_of(folder) if name.isascii() and name.isdigit())
    return tuple(_read_nodes(folder, numbers))


def _read_nodes(folder: Path, numbers: list[int]) -> Iterator[KfdNode]:
    for number in numbers:
        values = _properties(folder / str(number) / "properties")
        if values.get("simd_count", 0) > 0:
            yield _node(folder / str(number), number, values)


def _node(folder: Path, number: int, values: Mapping[str, int]) -> KfdNode:
    return KfdNode(
        number=number,
        address=_address(values),
        part=values.get("location_id", 0) & 7,
        render_minor=values.get("drm_render_minor") or -1,
        simd_count=values["simd_count"],
        simd_per_cu=values.get("simd_per_cu", 0),
        device_id=values.get("device_id", 0),
        target=target_name(values.get("gfx_target_version", 0)),
        unique_id=_hexadecimal(values.get("unique_id", 0)),
        hive=_hexadecimal(values.get("hive_id", 0)),
        processor_cores=values.get("cpu_cores_count", 0),
        memory_bytes=_size(_bank_bytes(folder)) or _size(values.get("local_mem_size", 0)),
    )


def _address(values: Mapping[str, int]) -> str:
    """Return the GPU's address, "" if the node does not show it; older kernels show no domain, which is then 0."""
    location, domain = values.get("location_id", -1), values.get("domain", 0)
    if not 0 <= location <= _LAST_LOCATION or domain > _LAST_DOMAIN:
        return ""
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.0"


def _size(number: int) -> int | None:
    return number if 0 < number < MAX_MEMORY_BYTES else None


def _bank_bytes(folder: Path) -> int:
    banks = (read_text(folder / "mem_banks" / name / "properties") for name in entries_of(folder / "mem_banks"))
    read = [dict(_pairs(text or "")) for text in banks]
    return sum(int(one.get("size_in_bytes", "0")) for one in read if one.get("heap_type") in _DEVICE_MEMORY_HEAPS)


def _properties(path: Path) -> Mapping[str, int]:
    return {name: int(value) for name, value in _pairs(read_text(path) or "")}


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and numbers of a properties file; a line of another form is skipped."""
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if value.isascii() and value.isdigit() and len(value) <= 20:  # the kernel prints unsigned 64-bit numbers
            yield name, value


def _hexadecimal(number: int) -> str | None:
    return f"{number:016x}" if number else None


def target_name(version: int) -> str | None:
    """Return the name by which compilers know an architecture, or None for 0.

    Source: Linux kfd_device.c: major, minor and stepping in decimal pairs; compilers write the stepping in hexadecimal.

    >>> target_name(90402), target_name(90010), target_name(110500), target_name(0)
    ('gfx942', 'gfx90a', 'gfx1150', None)
    """
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}" if version else None
