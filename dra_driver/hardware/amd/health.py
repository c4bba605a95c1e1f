"""The KFD topology: the compute driver's description of each GPU and of each partition.

In: roots. Out: `KfdNode`s in the order of their numbers. A partition that the topology lacks can't be used, even if
there are render nodes for it. A node that is there and can't be read is not taken for one that is absent: the kernel
refuses the files of a GPU whose render node the reader's cgroup may not use.

Source: Linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c (the files' format is one `name value` a line; location_id).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from dra_driver.base.flags import registered_as
from dra_driver.base.machine import boot_time
from dra_driver.base.names import normal_pci_address
from dra_driver.hardware.evidence import BusState, DriverReset, KernelRecords, Vitals
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.pci import (
    MAX_MEMORY_BYTES,
    DrmFunction,
    bus_state,
    entries_of,
    read_functions,
    read_readable,
    read_text,
)
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs import margins, read_sensors

_NODES = "class/kfd/kfd/topology/nodes"
_LAST_LOCATION, _LAST_DOMAIN = 0xFFFF, 0xFFFF_FFFF
_PART_BITS = 28  # newer kernels write the part of a divided GPU above them; older ones among those of the function
_DEVICE_MEMORY_HEAPS = ("1", "2")  # heap types: frame buffer, visible to the host or not


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One GPU, or one partition of a GPU, in the topology.

    `part` is the partition's index within its GPU, 0 for a whole one. Older kernels report it in the number of the
    function: there `address` is that of the GPU only as far as `nodes_by_gpu` finds. `memory_bytes` is the size of the
    memory bank: on an APU that is how much of the host's memory the GPU may use. `unique_id` and `hive` are in
    hexadecimal, None where they are 0.
    """

    number: int
    address: str  # "" if the topology does not report it
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


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs and partitions of the topology, without the nodes of processors. `unreadable` says what is missing."""

    nodes: tuple[KfdNode, ...] = ()
    unreadable: tuple[str, ...] = ()


def read_topology(roots: Roots) -> Topology:
    """Return the topology, as far as it can be read."""
    folder = Path(roots.sys, _NODES)
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names only
    except FileNotFoundError:
        return Topology()
    except OSError as error:
        return Topology(unreadable=(f"the nodes of the topology can't be listed ({error.strerror})",))
    nodes, unreadable = [], []
    for number in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
        try:
            node = _read_node(folder / str(number), number)
        except OSError as error:
            unreadable.append(f"node {number} of the topology can't be read ({error.strerror})")
        else:
            nodes += [node] if node is not None else []
    return Topology(tuple(nodes), tuple(unreadable))


def _read_node(folder: Path, number: int) -> KfdNode | None:
    values = _properties(folder / "properties")
    return _node(folder, number, values) if values.get("simd_count", 0) > 0 else None


def nodes_by_gpu(nodes: Sequence[KfdNode], functions: Collection[str]) -> Mapping[str, tuple[KfdNode, ...]]:
    """Return the nodes of each GPU by its address, with their parts; `functions` are the GPUs that are known otherwise.

    Nodes whose GPU the topology does not report have the address "".
    """
    found: dict[str, list[KfdNode]] = {}
    for node in nodes:
        found.setdefault(_gpu_of(node, nodes, functions), []).append(node)
    return {address: _with_parts(address, own) for address, own in found.items()}


def _gpu_of(node: KfdNode, nodes: Sequence[KfdNode], functions: Collection[str]) -> str:
    """Return the address of a node's GPU: its own, or that of the function to whose number a part was added."""
    if not node.address or node.address in functions:
        return node.address
    slot, function = node.address[:-1], int(node.address[-1])
    same_slot = [one for one in functions if one[:-1] == slot and int(one[-1]) & function == int(one[-1])]
    same_gpu = (one.address for one in nodes if one.address[:-1] == slot and one.unique_id == node.unique_id)
    return min(same_slot or same_gpu)


def _with_parts(address: str, nodes: Sequence[KfdNode]) -> tuple[KfdNode, ...]:
    """Return the nodes of one GPU, in the order of their parts as far as the kernel adds these to the function."""
    if not address or any(node.part for node in nodes):
        return tuple(nodes)
    if address.endswith("0"):
        return tuple(replace(node, part=int(node.address[-1])) for node in nodes)
    return tuple(replace(node, part=index) for index, node in enumerate(nodes))


def _node(folder: Path, number: int, values: Mapping[str, int]) -> KfdNode:
    return KfdNode(
        number=number,
        address=_address(values),
        part=values.get("location_id", 0) >> _PART_BITS,
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
    domain, location = values.get("domain", 0), values.get("location_id", -1)
    location = location & (1 << _PART_BITS) - 1 if location >> _PART_BITS <= 0xF else location
    if not 0 <= location <= _LAST_LOCATION or domain > _LAST_DOMAIN:
        return ""
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _size(number: int) -> int | None:
    return number if 0 < number < MAX_MEMORY_BYTES else None


def _bank_bytes(folder: Path) -> int:
    banks = (read_readable(folder / "mem_banks" / name / "properties") for name in entries_of(folder / "mem_banks"))
    read = [dict(_pairs(text or "")) for text in banks]
    return sum(int(one.get("size_in_bytes", "0")) for one in read if one.get("heap_type") in _DEVICE_MEMORY_HEAPS)


def _properties(path: Path) -> Mapping[str, int]:
    return {name: int(value) for name, value in _pairs(read_readable(path) or "")}


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


# Resets: what the kernel driver logged about resets of each GPU, which no file of sysfs keeps.

NEW_SECONDS = 30.0  # a successful reset that is older than this when the log is first read is not reported
MAX_GPUS = 256  # addresses that are remembered; no machine has so many
_LINE = re.compile(
    r"amdgpu (?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]): (?:amdgpu: )?(?:\[drm\] )?(?P<text>.+)"
)
_LOADED = "[drm] amdgpu kernel modesetting enabled"
_MEANINGS = (
    (re.compile(r"GPU reset begin"), DriverReset.UNDER_WAY),
    (re.compile(r"GPU reset\(\d{1,9}\) succeeded"), DriverReset.DONE),
    (re.compile(r"GPU reset\(\d{1,9}\) failed|GPU reset end with ret = -"), DriverReset.FAILED),
    (re.compile(r"device lost from bus"), DriverReset.LOST),
)


class ResetLog:
    """The resets of the node's GPUs since the driver was loaded, as far back as the log reaches."""

    def __init__(self, records: KernelRecords) -> None:
        self._records = records
        self._states: dict[str, DriverReset] = {}

    def read(self) -> dict[str, DriverReset]:
        """Return how the last reset of each GPU went; one that went well is returned once."""
        began = boot_time()
        for _, at, text in self._records.new():
            if text.startswith(_LOADED):
                self._states.clear()
            elif (found := _meaning(text)) is not None:
                gpu, state = found
                if state is DriverReset.DONE and began - at > NEW_SECONDS:
                    self._states.pop(gpu, None)
                elif gpu in self._states or len(self._states) < MAX_GPUS:
                    self._states[gpu] = state
        now = dict(self._states)
        self._states = {gpu: state for gpu, state in now.items() if state is not DriverReset.DONE}
        return now

    @property
    def is_read(self) -> bool:
        """Return whether the log can be read."""
        return not self._records.problem


def _meaning(text: str) -> tuple[str, DriverReset] | None:
    line = _LINE.match(text)
    if line is None:
        return None
    state = next((state for pattern, state in _MEANINGS if pattern.match(line["text"])), None)
    try:
        return None if state is None else (normal_pci_address(line["gpu"]), state)
    except ValueError:
        return None


# RAS: the errors that a GPU's blocks counted since the driver was loaded, and its bad pages of memory.

_COUNT = re.compile(r"^(ue|ce):\s*(\d{1,18})\s*$", re.MULTILINE)
_BAD_PAGE = re.compile(r"^0x[0-9a-fA-F]+\s*:\s*0x[0-9a-fA-F]+\s*:\s*([RPF])\s*$", re.MULTILINE)


CORRECTED, UNCORRECTED = "ce", "ue"
Counts = Mapping[tuple[str, str], int]


def block_counts(function: Path) -> Counts:
    """Return the errors of each block, by kind and block ("umc"), without those that no file counts.

    Newer kernels show a block under two names, `umc_err_count` and `aca_umc`: the larger of the two counts.
    """
    blocks: dict[tuple[str, str], int] = {}
    for name in entries_of(function / "ras"):
        if name.endswith("_err_count") or name.startswith("aca_"):
            block = name.removesuffix("_err_count").removeprefix("aca_")
            for kind, count in _COUNT.findall(read_text(function / "ras" / name) or ""):
                blocks[kind, block] = max(int(count), blocks.get((kind, block), 0))
    return blocks


def total_errors(counts: Counts, kind: str) -> int | None:
    """Return the errors of a kind of all blocks, None where no file counts them."""
    found = [count for (one, _), count in counts.items() if one == kind]
    return sum(found) if found else None


def bad_pages(function: Path) -> frozenset[str] | None:
    """Return the states that bad pages of memory are in, None where the GPU does not list them."""
    text = read_text(function / "ras/gpu_vram_bad_pages")
    return None if text is None else frozenset(_BAD_PAGE.findall(text))


# The facts of an AMD GPU or of one of its partitions, in addition to those of every device.

AMD = registered_as("amd")
DRIVERS = ("amdgpu",)  # of the kernel


@dataclass(frozen=True, slots=True)
class AmdGpu(GpuFacts):
    """One AMD GPU, or one partition of it (`part` is set then). Counts are those of this device only.

    `minor` is that of the render node, -1 if there is none. `uuid` identifies the device within this node and is
    published nowhere; `unique_id` is the hardware's own, in hexadecimal, None if the hardware has none (most APUs).
    `compute_mode` and `memory_mode` are those of the GPU ("CPX", "NPS4"), None if it can't be partitioned. `nodes`
    are those that a container needs: several render nodes for a whole GPU that is partitioned. `link_domain` is the
    XGMI hive, in hexadecimal.
    """

    vendor: ClassVar[str] = "amd"

    unique_id: str | None = None
    device_id: int | None = None
    architecture_target: str | None = None  # "gfx942"
    compute_units: int | None = None
    simd_units: int | None = None
    compute_mode: str | None = None
    memory_mode: str | None = None
    is_integrated: bool | None = None  # whether it uses the host's memory; None if that is not certain
    model_number: str | None = None  # of the board ("102-G30211-0C")


# The health of one of AMD's GPUs: error counters, bad pages, temperatures, the bus, and resets by the kernel
# driver.


def read_all_vitals(roots: Roots, resets: ResetLog | None = None) -> Iterator[Vitals]:
    """Yield the vitals of each GPU, as its files show them now."""
    by_gpu = resets.read() if resets is not None else {}
    none = DriverReset.NONE if resets is not None and resets.is_read else None
    for function in read_functions(roots, AMD, DRIVERS):
        yield read_vitals(function, roots, by_gpu.get(function.address, none))


def read_vitals(function: DrmFunction, roots: Roots, reset: DriverReset | None = None) -> Vitals:
    """Return the vitals of one GPU, as its files show them now."""
    address, folder = function.address, function.folder
    if reset is DriverReset.LOST or bus_state(roots, address, DRIVERS) is BusState.DEAD:
        return Vitals(address, boot_time(), is_lost=True)
    pages = bad_pages(folder)
    margin = min(margins(read_sensors(folder)), default=None)
    return Vitals(
        address,
        boot_time(),
        ecc_uncorrectable=total_errors(block_counts(folder), UNCORRECTED),
        remap_pending=None if pages is None else "P" in pages,
        remap_failed=None if pages is None else "F" in pages,
        thermal_margin=margin,
        slowdown_margin=None if margin is None else 0,
        reset=reset,
    )
