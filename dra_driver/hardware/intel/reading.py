"""One discovery of Intel's GPUs: functions on the bus and their facts.

In: roots. Out: `IntelGpu`s in PCI order, and problems. A function without a node is left out: nothing could open it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hardware import pci
from dra_driver.hardware.drm import DrmFunction, read_functions
from dra_driver.hardware.facts import Problem
from dra_driver.hardware.intel.facts import DRIVERS, INTEL, IntelGpu
from dra_driver.hardware.intel.models import IntelModel, model_of
from dra_driver.hardware.intel.regions import own_memory
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs.dmem import dmem_capacity

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
            text = "neither a file nor the kernel driver reports the GPU's memory: no memory is published"
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
    folder, card = function.folder, function.drm.card or ""
    of_card = (folder / "drm" / card / "lmem_total_bytes", folder.parent / "lmem_total_bytes")
    size_of_card = next((size for path in of_card if card and (size := pci.read_size(path))), None)
    tiles = [name for name in pci.entries_of(folder) if name.startswith("tile")]
    return size_of_card or sum(_size_of_tile(folder / tile) for tile in tiles) or None


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
