"""One discovery: the functions on the bus and the nodes of the topology, combined into GPUs and partitions.

In: roots. Out: `AmdGpu`s in the order of their names, and problems. A GPU that is partitioned is offered as the
partitions that the topology lists and, where the kernel reports how it is partitioned, also as a whole.

The memory of a GPU of its own is the size in the topology, or else the driver's total, or else what the `dmem` cgroup
can hand out. For a GPU that uses the host's memory (an APU) it is what the topology lets programs allocate; the part
that the firmware set aside is smaller and does not show what fits. For a partition it is the size in the topology,
which under NPS1 is only its share by count, because all partitions reach all of the memory.

A GPU without the files of modes can't be partitioned. If a file can't be read, or contains an unknown word, the GPU's
partitions are unknown, so no part of it may be offered.

Source: Linux Documentation/gpu/amdgpu (current_compute_partition, current_memory_partition), amdgpu_gfx.c,
kfd_topology.c; Documentation/admin-guide/cgroup-v2 (dmem.capacity).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dra_driver.hardware import pci, sysfs
from dra_driver.hardware.amd.health import AMD, DRIVERS, AmdGpu, KfdNode, nodes_by_gpu, read_topology
from dra_driver.hardware.amd.product_names import product_name
from dra_driver.hardware.facts import Problem
from dra_driver.hardware.pci import (
    DrmFunction,
    DrmNodes,
    entries_of,
    names_of_nodes,
    read_drm,
    read_functions,
    read_size,
    read_text,
)
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs import dmem_capacity

COMPUTE_MODES = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": 8}  # the most partitions that a mode makes
MEMORY_MODES = ("NPS1", "NPS2", "NPS3", "NPS4", "NPS6", "NPS8")


class ModeUnknownError(Exception):
    """The GPU has a mode that can't be determined; the text says why."""


@dataclass(frozen=True, slots=True)
class Modes:
    """The modes of a GPU, None where it has no such mode."""

    compute: str | None = None
    memory: str | None = None

    @property
    def is_whole(self) -> bool | None:
        """Return whether the GPU is one device, or None if the GPU does not report it."""
        return None if self.compute is None else self.compute == "SPX"


def read_modes(folder: Path) -> Modes:
    """Return the modes of the GPU of a PCI function's folder. Raises: ModeUnknownError."""
    return Modes(
        _read(folder / "current_compute_partition", tuple(COMPUTE_MODES)),
        _read(folder / "current_memory_partition", MEMORY_MODES),
    )


def _read(path: Path, known: tuple[str, ...]) -> str | None:
    text = read_text(path)
    if text is None:
        if os.path.lexists(path):
            raise ModeUnknownError(f"{path.name} can't be read")
        return None
    word = text.upper()
    if word not in known:
        raise ModeUnknownError(f"{path.name} contains {text[:32]!r}, which is none of {', '.join(known)}")
    return word


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


_UNKNOWN_MODE = "xcp"  # for partitions of unknown mode: accelerator complex partition, as the kernel calls them


@dataclass(frozen=True, slots=True)
class _Seen:
    """The findings about one GPU: its function, if the tree has one, and its nodes of the topology, one per part.

    With `may_lack_nodes`, the topology has nodes that can't be read, each of which may be this GPU's.
    """

    address: str
    function: DrmFunction | None
    nodes: tuple[KfdNode, ...]
    may_lack_nodes: bool = False


@dataclass(slots=True)
class AmdReading:
    """The result of one discovery, while it is made."""

    gpus: list[AmdGpu] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def report(self, code: str, address: str, message: str) -> None:
        """Add a problem of one GPU."""
        self.problems.append(Problem(f"hardware.{code}", address, message))


def read_gpus(roots: Roots, driver_version: str | None) -> AmdReading:
    """Return every GPU and partition that may be offered. One that can't be identified or read becomes a problem."""
    reading = AmdReading()
    cards = read_partition_cards(roots)
    for seen in _join(roots, reading):
        _add(seen, roots, cards, reading)
    reading.gpus = [replace(gpu, driver_version=driver_version) for gpu in reading.gpus]
    reading.gpus.sort(key=lambda gpu: (gpu.pci_address, gpu.part))
    reading.gpus = list(_with_own_nodes(reading))
    return reading


def _with_own_nodes(reading: AmdReading) -> Iterator[AmdGpu]:
    """Yield the devices that share no device node with another GPU; the others become problems."""
    owners: dict[str, str] = {}
    for gpu in reading.gpus:
        others = {owners.setdefault(node, gpu.pci_address) for node in gpu.nodes} - {gpu.pci_address}
        if others:
            text = f"it has the same device node as {min(others)}: it is left out"
            reading.report("identity-shared", gpu.pci_address, text)
        else:
            yield gpu


def _join(roots: Roots, reading: AmdReading) -> Iterator[_Seen]:
    topology = read_topology(roots)
    for text in topology.unreadable:
        reading.report("fact-unreadable", "node", f"{text}: what depends on it is not offered")
    functions = {function.address: function for function in read_functions(roots, AMD, DRIVERS)}
    nodes = _nodes_by_gpu(topology.nodes, functions)
    for address, function in functions.items():
        own = _distinct(address, nodes.pop(address, []), reading)
        yield _Seen(address, function, own, may_lack_nodes=bool(topology.unreadable))
    for node in nodes.pop("", []):
        text = f"node {node.number} of the topology does not show which GPU it is: it is left out"
        reading.report("identity-unknown", "node", text)
    for address in sorted(nodes):
        if _is_bus_shown(roots):
            text = "the topology lists it, but amdgpu drives no PCI function at this address: it is left out"
            reading.report("gpu-gone", address, text)
            continue
        own = _distinct(address, nodes[address], reading)
        yield _Seen(address, None, own, may_lack_nodes=bool(topology.unreadable))


def _nodes_by_gpu(nodes: Sequence[KfdNode], functions: Mapping[str, DrmFunction]) -> dict[str, list[KfdNode]]:
    """Return the nodes by the address of their GPU; a GPU that is not on the bus may be known by its render node."""
    by_minor = {function.drm.render_minor: function.address for function in functions.values()}
    found: dict[str, list[KfdNode]] = {}
    for address, own in nodes_by_gpu(nodes, functions).items():
        for node in own:
            gpu = address if address in functions else by_minor.get(node.render_minor, address)
            found.setdefault(gpu, []).append(node)
    return found


def _is_bus_shown(roots: Roots) -> bool:
    """Return whether the tree has PCI functions at all; a copy of another machine's topology may have none."""
    return any(pci.entries_of(Path(roots.sys, "bus/pci/devices")))


def _distinct(address: str, nodes: Sequence[KfdNode], reading: AmdReading) -> tuple[KfdNode, ...]:
    """Return one node for each part, the first; another that claims to be the same part is a problem."""
    parts: dict[int, KfdNode] = {}
    for node in nodes:
        first = parts.setdefault(node.part, node)
        if first is not node:
            text = "nodes {} and {} of the topology are about the same part; the second is left out"
            reading.report("identity-shared", address, text.format(first.number, node.number))
    return tuple(parts[part] for part in sorted(parts))


def _add(seen: _Seen, roots: Roots, cards: dict[int, str], reading: AmdReading) -> None:
    try:
        modes = read_modes(seen.function.folder) if seen.function else Modes()
    except ModeUnknownError as error:
        reading.report("partition-mode-unknown", seen.address, f"{error}: nothing of this GPU is offered")
        return
    is_whole = not any(node.part for node in seen.nodes) if modes.is_whole is None else modes.is_whole
    if not seen.nodes and seen.may_lack_nodes:
        text = "its nodes of the topology may be among those that can't be read: it is left out"
        reading.report("fact-unreadable", seen.address, text)
    elif is_whole and len(seen.nodes) > 1:
        reading.report("partitions-changing", seen.address, "the topology has partitions, but the mode is SPX")
    elif is_whole:
        whole = _whole(seen, modes, roots)
        _check(whole, reading)
        reading.gpus.append(whole)
    elif not seen.nodes:
        text = f"the GPU is in mode {modes.compute}, but the topology has none of its partitions"
        reading.report("partitions-changing", seen.address, text)
    else:
        _add_parts(seen, _whole(seen, modes, roots), cards, reading)


def _add_parts(seen: _Seen, whole: AmdGpu, cards: dict[int, str], reading: AmdReading) -> None:
    card = seen.function.drm.card if seen.function else None
    parts = [_part(node, whole, cards, card) for node in seen.nodes]
    for part in parts:
        _check(part, reading)
    reading.gpus += parts
    if whole.compute_mode is None:
        return
    if seen.may_lack_nodes and len(parts) < COMPUTE_MODES[whole.compute_mode]:
        text = f"only {len(parts)} of its partitions can be read: all of them together are not offered as one device"
        reading.report("fact-unreadable", seen.address, text)
    else:
        reading.gpus.append(_undivided(whole, parts))


def _whole(seen: _Seen, modes: Modes, roots: Roots) -> AmdGpu:
    """Return the facts of a GPU that is one device."""
    function, node = seen.function, seen.nodes[0] if seen.nodes else None
    drm = function.drm if function else DrmNodes()
    minor = drm.render_minor if drm.render_minor is not None else (node.render_minor if node else -1)
    files = MemoryFiles.read(seen.address, function, roots)
    integrated = is_integrated(node, files)
    device_id = (function.device_id if function else None) or (node.device_id if node else None) or None
    unique_id = (node.unique_id if node else None) or _unique_id(function)
    return AmdGpu(
        uuid=unique_id or seen.address,
        pci_address=seen.address,
        minor=minor,
        memory_bytes=memory_of_whole(node, files),
        product_name=_product_name(function, device_id),
        link_domain=node.hive if node else None,
        numa_node=pci.read_numa(function.folder) if function else None,
        pcie_root=pci.pcie_root_above(function.folder) if function else None,
        pci_id=device_id << 16 | AMD.pci_vendor if device_id else None,
        vbios_version=pci.read_label(function.folder / "vbios_version") if function else None,
        serial=pci.read_label(function.folder / "serial_number") if function else None,
        model_number=pci.read_label(function.folder / "product_number") if function else None,
        unique_id=unique_id,
        device_id=device_id,
        architecture_target=node.target if node else None,
        compute_units=node.compute_units if node else None,
        simd_units=node.simd_count if node else None,
        compute_mode=modes.compute,
        memory_mode=modes.memory,
        is_integrated=integrated,
        limits_memory=integrated is False
        and sysfs.is_offered(roots)
        and len(sysfs.own_memory(roots, seen.address)) == 1,
        nodes=names_of_nodes(drm.card, minor),
    )


def _part(node: KfdNode, whole: AmdGpu, cards: dict[int, str], card_of_whole: str | None) -> AmdGpu:
    """Return the facts of one partition: those of its GPU, and the numbers of its own node."""
    card = cards.get(node.render_minor) or (card_of_whole if node.render_minor == whole.minor >= 0 else None)
    mode = (whole.compute_mode or _UNKNOWN_MODE).lower()
    return replace(
        whole,
        uuid=f"{whole.uuid}-{mode}-{node.part}",
        limits_memory=False,  # the region is that of the whole GPU
        part=f"{mode}-{node.part}",
        minor=node.render_minor,
        memory_bytes=node.memory_bytes,
        architecture_target=node.target,
        compute_units=node.compute_units,
        simd_units=node.simd_count,
        nodes=names_of_nodes(card, node.render_minor),
    )


def _undivided(whole: AmdGpu, parts: Sequence[AmdGpu]) -> AmdGpu:
    """Return a partitioned GPU as one device, with the sum of its partitions' resources and all their nodes."""
    memory = [part.memory_bytes for part in parts]
    return replace(
        whole,
        limits_memory=False,
        part=f"{(whole.compute_mode or _UNKNOWN_MODE).lower()}-all",
        parts=len(parts),
        memory_bytes=None if None in memory else sum(one or 0 for one in memory),
        compute_units=sum(part.compute_units or 0 for part in parts) or None,
        simd_units=sum(part.simd_units or 0 for part in parts) or None,
        nodes=tuple(sorted(dict.fromkeys(node for part in parts for node in part.nodes), key=_is_render)),
    )


def _is_render(node: str) -> bool:
    return node.startswith("dri/renderD")


def _check(gpu: AmdGpu, reading: AmdReading) -> None:
    """Report the facts that a device lacks and that users would miss."""
    subject = f"{gpu.pci_address} {gpu.part}".strip()
    if gpu.minor < 0:
        reading.report(
            "node-missing", gpu.pci_address, f"{subject} has no render node: claims for it fail until it has one"
        )
    if gpu.memory_bytes is None:
        text = f"no file reports how much memory {subject} has: it is published as 0"
        reading.report("fact-unreadable", gpu.pci_address, text)


def _unique_id(function: DrmFunction | None) -> str | None:
    text = (pci.read_text(function.folder / "unique_id") or "").lower() if function else ""
    try:
        return f"{int(text, 16):016x}" if text and int(text, 16) and len(text) <= 18 else None
    except ValueError:
        return None


def _product_name(function: DrmFunction | None, device_id: int | None) -> str | None:
    """Return the name that the board reports, or else the known name for its PCI number."""
    reported = pci.read_label(function.folder / "product_name") if function else None
    return reported or product_name(device_id, function.revision if function else None)


def read_partition_cards(roots: Roots) -> dict[int, str]:
    """Return the card of each partition's render node, by minor.

    Partitions are platform devices; kernels before 2024 write amdgpu_xcp.3, newer ones amdgpu_xcp_3.
    """
    folder = Path(roots.sys, "devices/platform")
    cards = {}
    for name in entries_of(folder):
        if name.startswith(("amdgpu_xcp.", "amdgpu_xcp_")):
            drm = read_drm(folder / name / "drm")
            if drm.render_minor is not None and drm.card is not None:
                cards[drm.render_minor] = drm.card
    return cards


# Processes that compute on a GPU, as AMD's compute driver lists them: those with memory or a queue on it.

_KFD = "class/kfd/kfd"
_IDLE = {None, "", "0"}


def computing_on(roots: Roots, address: str) -> frozenset[int]:
    """Return the ids of the processes with memory or a queue on any part of a GPU."""
    kfd = Path(roots.sys, _KFD)
    functions = [function.address for function in read_functions(roots, AMD, DRIVERS)]
    nodes = nodes_by_gpu(read_topology(roots).nodes, functions).get(address, ())
    ids = {read_text(kfd / "topology/nodes" / str(node.number) / "gpu_id") for node in nodes} - _IDLE
    processes = (name for name in entries_of(kfd / "proc") if name.isdigit()) if ids else ()
    return frozenset(int(name) for name in processes if _uses(kfd / "proc" / name, ids))


def _uses(process: Path, ids: set[str | None]) -> bool:
    if any(read_text(process / f"vram_{gpu}") not in _IDLE for gpu in ids):
        return True
    return any(read_text(process / "queues" / queue / "gpuid") in ids for queue in entries_of(process / "queues"))
