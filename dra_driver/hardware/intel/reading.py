"""One discovery of Intel's GPUs: functions on the bus and their facts.

In: roots. Out: `IntelGpu`s in PCI order, and problems. A function without a node is left out: nothing could open it.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from dra_driver.base.flags import registered_as
from dra_driver.hardware import pci
from dra_driver.hardware.facts import GpuFacts, Problem
from dra_driver.hardware.pci import DrmFunction, entries_of, read_functions, read_text
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs import dmem_capacity, read_number

# The facts of an Intel GPU, in addition to those of every device.

INTEL = registered_as("intel")
DRIVERS = ("i915", "xe")  # of the kernel


@dataclass(frozen=True, slots=True)
class IntelGpu(GpuFacts):
    """One Intel GPU, or a virtual function of one.

    `minor` is that of the render node, -1 if there is none. `uuid` identifies the device within this node and is
    published nowhere. `nodes` are the card and the render node; `admin_nodes` are those of the management engine, which
    only claims with admin access get.
    """

    vendor: ClassVar[str] = "intel"

    device_id: int | None = None
    model: str | None = None  # None if the table has no name for the device id
    family: str | None = None
    kernel_driver: str | None = None
    is_integrated: bool | None = None  # whether it uses the host's memory; None if that is not certain
    is_virtual: bool = False  # a virtual function (SR-IOV)
    physical_address: str | None = None  # of the physical function, for a virtual one
    may_be_divided: bool = False  # whether it has SR-IOV
    admin_nodes: tuple[str, ...] = ()


# Models and families of Intel's GPUs by PCI device id.

_ARC_A, _PRO_A, _FLEX, _MAX = "Arc A-Series", "Arc Pro A-Series", "Data Center Flex", "Data Center Max"
_ARC_B, _PRO_B, _IRIS, _PLAIN = "Arc B-Series", "Arc Pro B-Series", "Iris Xe", "Intel Graphics"


@dataclass(frozen=True, slots=True)
class IntelModel:
    """A model. `is_integrated` is true if it is part of a processor."""

    name: str
    family: str
    is_integrated: bool = False


_MODELS = {
    0x0B69: IntelModel("Max 1550", _MAX),
    0x0BD0: IntelModel("Max 1550", _MAX),
    0x0BD5: IntelModel("Max 1550", _MAX),
    0x0BD6: IntelModel("Max 1450", _MAX),
    0x0BD9: IntelModel("Max 1100", _MAX),
    0x0BDA: IntelModel("Max 1100", _MAX),
    0x0BDB: IntelModel("Max 1100", _MAX),
    0x4626: IntelModel("Alder Lake-P", _IRIS, is_integrated=True),
    0x56A0: IntelModel("A770", _ARC_A),
    0x56A1: IntelModel("A750", _ARC_A),
    0x56A2: IntelModel("A580", _ARC_A),
    0x56A5: IntelModel("A380", _ARC_A),
    0x56A6: IntelModel("A310", _ARC_A),
    0x56B0: IntelModel("A30M", _PRO_A),
    0x56B1: IntelModel("A40/A50", _PRO_A),
    0x56B2: IntelModel("A60M", _PRO_A),
    0x56B3: IntelModel("A60", _PRO_A),
    0x56C0: IntelModel("Flex 170", _FLEX),
    0x56C1: IntelModel("Flex 140", _FLEX),
    0x7D67: IntelModel("Arrow Lake-S", _PLAIN, is_integrated=True),
    0x9A40: IntelModel("Tiger Lake-LP GT2", _IRIS, is_integrated=True),
    0x9A49: IntelModel("Tiger Lake-LP GT2", _IRIS, is_integrated=True),
    0xA7A0: IntelModel("Raptor Lake-P", _IRIS, is_integrated=True),
    **{0xB080 + n: IntelModel("B370" if n % 2 else "B390", _ARC_B, is_integrated=True) for n in range(8)},
    0xE20B: IntelModel("B580", _ARC_B),
    0xE20C: IntelModel("B570", _ARC_B),
    0xE211: IntelModel("B60", _PRO_B),
    0xE212: IntelModel("B50", _PRO_B),
    0xE222: IntelModel("B65", _PRO_B),
    0xE223: IntelModel("B70", _PRO_B),
}


def model_of(device_id: int | None) -> IntelModel | None:
    """Return the model of a PCI device id, or None if the table lacks it.

    >>> model_of(0xE20B).name, model_of(0x1234)
    ('B580', None)
    """
    return _MODELS.get(device_id) if device_id is not None else None


# The memory regions of a GPU, according to its kernel driver.

Ioctl = Callable[[int, int, bytearray], int]

_XE_QUERY, _XE_REGIONS = 0xC0286440, 1
_I915_QUERY, _I915_REGIONS = 0xC0106479, 4
_XE_REQUEST = struct.Struct("=QIIQQQ")  # extensions, query, size, address, reserved twice
_I915_REQUEST = struct.Struct("=IIQ")  # items, flags, address of the items
_I915_ITEM = struct.Struct("=QiIQ")  # query, length, flags, address
_XE_HEADER, _I915_HEADER = 8, 16  # in both, the number of regions comes first
_REGION_BYTES, _DEVICE_MEMORY = 88, 1
_MAX_BYTES = 64 << 10


def own_memory(driver: str, path: str) -> int | None:
    """Return the size of a GPU's own memory in bytes, 0 if it has none, or None if its driver does not report it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        from fcntl import ioctl  # noqa: PLC0415 - on nodes with these GPUs alone

        return read_xe(fd, ioctl) if driver == "xe" else read_i915(fd, ioctl)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_xe(fd: int, ioctl: Ioctl) -> int | None:
    """Return the size that the driver xe reports. Raises: OSError."""
    request = bytearray(_XE_REQUEST.pack(0, _XE_REGIONS, 0, 0, 0, 0))
    ioctl(fd, _XE_QUERY, request)
    size = _XE_REQUEST.unpack(request)[2]
    if not _XE_HEADER <= size <= _MAX_BYTES:
        return None
    answer = array("B", bytes(size))
    ioctl(fd, _XE_QUERY, bytearray(_XE_REQUEST.pack(0, _XE_REGIONS, size, answer.buffer_info()[0], 0, 0)))
    return device_memory(answer.tobytes(), _XE_HEADER)


def read_i915(fd: int, ioctl: Ioctl) -> int | None:
    """Return the size that the driver i915 reports. Raises: OSError."""
    item = array("B", _I915_ITEM.pack(_I915_REGIONS, 0, 0, 0))
    request = _I915_REQUEST.pack(1, 0, item.buffer_info()[0])
    ioctl(fd, _I915_QUERY, bytearray(request))
    size = _I915_ITEM.unpack(item.tobytes())[1]
    if not _I915_HEADER <= size <= _MAX_BYTES:  # a negative length is the driver's error number
        return None
    answer = array("B", bytes(size))
    item[:] = array("B", _I915_ITEM.pack(_I915_REGIONS, size, 0, answer.buffer_info()[0]))
    ioctl(fd, _I915_QUERY, bytearray(request))
    return device_memory(answer.tobytes(), _I915_HEADER)


def device_memory(answer: bytes, header: int) -> int | None:
    """Return the sum of the regions of device memory in an answer, or None for one that is cut short.

    A region starts with class and instance (16 bits each), another 32 bits, and its size in bytes (64 bits).
    """
    if len(answer) < header:
        return None
    (count,) = struct.unpack_from("=I", answer)
    if len(answer) < header + count * _REGION_BYTES:
        return None
    regions = (struct.unpack_from("=HHIQ", answer, header + index * _REGION_BYTES) for index in range(count))
    return sum(int(size) for kind, _, _, size in regions if kind == _DEVICE_MEMORY)


AskMemory = Callable[[str, str], int | None]  # takes a kernel driver's name and a card's path; returns bytes
_INTEGRATED_SLOT = ":00:02."  # where processors have their own GPU; source: Linux i915 and xe, bus 0 device 2


@dataclass(slots=True)
class IntelReading:
    """The result of one discovery, while it is made."""

    gpus: list[IntelGpu] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_gpus(roots: Roots, ask: AskMemory = own_memory) -> IntelReading:
    """Return every GPU and virtual function that a container can open, and a problem for each that it can't."""
    reading = IntelReading()
    for function in read_functions(roots, INTEL, DRIVERS):
        if not function.drm.names:
            text = "the GPU has neither a card nor a render node: containers could not open it, so it is left out"
            reading.problems.append(Problem("hardware.node-missing", function.address, text))
            continue
        gpu = _gpu(function, roots, ask)
        reading.gpus.append(gpu)
        if gpu.memory_bytes is None and gpu.is_integrated is not True:
            text = "neither a file nor the kernel driver reports the GPU's memory: it is published as 0"
            reading.problems.append(Problem("hardware.fact-unreadable", gpu.pci_address, text))
    return reading


def _gpu(function: DrmFunction, roots: Roots, ask: AskMemory) -> IntelGpu:
    folder, device_id, minor = function.folder, function.device_id, function.drm.render_minor
    model = model_of(device_id)
    memory = dmem_capacity(roots, function.address) or _memory_in_sysfs(function)
    if memory is None and function.drm.card is not None and _may_ask(roots):
        memory = ask(function.driver, f"{roots.dev}/dri/{function.drm.card}")
    physical = pci.read_physical(folder)
    return IntelGpu(
        uuid=function.address,
        pci_address=function.address,
        minor=-1 if minor is None else minor,
        memory_bytes=memory or None,
        product_name=f"Intel {model.family} {model.name}" if model else None,
        numa_node=pci.read_numa(folder),
        pcie_root=pci.pcie_root_above(folder),
        pci_id=device_id << 16 | INTEL.pci_vendor if device_id else None,
        nodes=function.drm.names,
        device_id=device_id,
        model=model.name if model else None,
        family=model.family if model else None,
        kernel_driver=function.driver,
        is_integrated=_is_integrated(function.address, model, memory),
        is_virtual=physical is not None,
        physical_address=physical,
        may_be_divided=bool(pci.read_size(folder / "sriov_totalvfs")),
        admin_nodes=_management_nodes(folder),
    )


def _memory_in_sysfs(function: DrmFunction) -> int | None:
    """Return the memory that the kernel driver shows in sysfs, which most releases of the drivers do not.

    Source: i915 as Intel ships it for data centers (lmem_total_bytes of the card), xe (physical_vram_size_bytes of each
    tile, in some releases of Intel's below the tile's `memory`).
    """
    folder = function.folder
    tiles = [name for name in pci.entries_of(folder) if name.startswith("tile")]
    return _size_of_card(function) or sum(_size_of_tile(folder / tile) for tile in tiles) or None


def read_used_memory(function: DrmFunction) -> int | None:
    """Return how much of its own memory a GPU uses, in bytes; None if the kernel driver does not show it.

    Source: i915 as Intel ships it for data centers, whose lmem_avail_bytes is what nothing uses.
    """
    total = _size_of_card(function)
    for path in _files_of_card(function, "lmem_avail_bytes"):
        text = pci.read_text(path) or ""  # no size, because it may be 0
        if total and text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= total:
            return total - int(text)
    return None


def _size_of_card(function: DrmFunction) -> int | None:
    paths = _files_of_card(function, "lmem_total_bytes")
    return next((size for path in paths if (size := pci.read_size(path))), None)


def _files_of_card(function: DrmFunction, name: str) -> tuple[Path, ...]:
    folder, card = function.folder, function.drm.card
    return (folder / "drm" / card / name, folder.parent / name) if card else ()


def _size_of_tile(folder: Path) -> int:
    places = (folder / below / "physical_vram_size_bytes" for below in (".", "memory"))
    return next((size for place in places if (size := pci.read_size(place))), 0)


def _may_ask(roots: Roots) -> bool:
    """Return whether the device nodes belong to the same machine as sysfs, which may be a copy of another machine's."""
    return roots.dev != "/dev" or roots.sys == "/sys"


def _is_integrated(address: str, model: IntelModel | None, memory: int | None) -> bool | None:
    if model is not None:
        return model.is_integrated
    if memory is not None:
        return memory == 0
    return True if _INTEGRATED_SLOT in address else None


def _management_nodes(folder: Path) -> tuple[str, ...]:
    """Return the nodes of the GPU's management engine; its folders are named after the kernel driver and a number."""
    engines = (folder / name / "mei" for name in pci.entries_of(folder) if ".mei-" in name)
    return tuple(node for engine in engines for node in pci.entries_of(engine) if node.startswith("mei"))


# The graphics parts (GTs) of an Intel GPU: their clocks, whether these are throttled, and the time spent asleep.

_TILE, _GT = re.compile(r"tile\d{1,2}"), re.compile(r"gt\d{1,2}")


@dataclass(frozen=True, slots=True)
class GraphicsTile:
    """One GT. A value that no file shows is None; `slept_ms` is the time spent in the deepest idle state (C6)."""

    clock_mhz: int | None
    is_throttled: bool | None
    is_throttled_by_heat: bool | None
    slept_ms: int | None


def read_tiles(function: DrmFunction) -> tuple[GraphicsTile, ...]:
    """Return the GTs of a GPU in the order of their names."""
    if function.driver == "xe":
        return tuple(_xe(folder) for folder in _folders_of_xe(function.folder))
    folder = function.folder / "drm" / (function.drm.card or "card0") / "gt"
    if not folder.is_dir():
        folder = function.folder.parent / "gt"  # the function was found through its card
    return tuple(_i915(folder / name) for name in entries_of(folder) if _GT.fullmatch(name))


def _folders_of_xe(function: Path) -> Iterator[Path]:
    for tile in entries_of(function):
        if _TILE.fullmatch(tile):
            yield from (function / tile / name for name in entries_of(function / tile) if _GT.fullmatch(name))


def _xe(folder: Path) -> GraphicsTile:
    throttle = folder / "freq0/throttle"
    return GraphicsTile(
        read_number(folder / "freq0/act_freq"),
        _flag(throttle / "status"),
        _any(throttle, ("reason_thermal", "reason_prochot", "reason_vr_thermalert")),
        read_number(folder / "gtidle/idle_residency_ms"),
    )


def _i915(folder: Path) -> GraphicsTile:
    names = ("throttle_reason_thermal", "throttle_reason_prochot", "throttle_reason_vr_thermalert")
    return GraphicsTile(
        read_number(folder / "rps_act_freq_mhz"),
        _flag(folder / "throttle_reason_status"),
        _any(folder, names),
        read_number(folder / "rc6_residency_ms"),
    )


def _flag(path: Path) -> bool | None:
    text = read_text(path)
    return text == "1" if text in ("0", "1") else None


def _any(folder: Path, names: tuple[str, ...]) -> bool | None:
    flags = [flag for name in names if (flag := _flag(folder / name)) is not None]
    return any(flags) if flags else None
