"""AMD's GPUs behind the hardware port.

In: roots. Out: `Facts`, a fingerprint, container edits. Everything is read from sysfs; no library is loaded and no
device is opened, so nothing can hang in a library and nothing has to be released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.wire import SharedDevice
from dra_driver.hardware import pci, sysfs
from dra_driver.hardware.amd import health
from dra_driver.hardware.amd.health import AMD, DRIVERS, AmdGpu
from dra_driver.hardware.amd.product_names import product_name
from dra_driver.hardware.amd.reading import read_gpus
from dra_driver.hardware.facts import Edits, Facts, GpuFacts, PartitionFacts, Problem
from dra_driver.hardware.pci import edits_of_nodes, node_missing, on_bus, read_device_nodes, read_functions
from dra_driver.hardware.port import Fingerprint, Roots
from dra_driver.hardware.sysfs import SysfsObservation, semantic_version
from dra_driver.hardware.vendors import PASSED, VFIO, FoundDevice, Published, ValueKind, is_virtual

if TYPE_CHECKING:
    from dra_driver.hardware.metered import Reading
    from dra_driver.hardware.sysfs import VitalsSource


# Edits for containers with AMD's GPUs: /dev/kfd once, and the card and the render node of each device.


def common_edits(roots: Roots) -> Edits:
    """Return the compute driver's node, which all devices share; nothing where the kernel has no compute driver.

    Raises: HardwareError("hardware.node-missing", retry LATER).
    """
    return edits_of_nodes(["kfd"], roots) if health.is_there(roots) else Edits()


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


_MODE_FILES = ("current_compute_partition", "current_memory_partition")


class AmdHardware(SysfsObservation):
    """AMD's GPUs on this node.

    Args:
        roots: where the node's trees are.
    """

    vendor = "amd"
    drivers = DRIVERS

    def is_present(self) -> bool:
        """Return whether there is a GPU of AMD on the bus, or one that its kernel driver drives."""
        return bool(
            read_functions(self._roots, AMD, DRIVERS)
            or on_bus(self._roots, AMD)
            or health.read_topology(self._roots).nodes
        )

    def discover(self) -> Facts:
        """Read everything and return it."""
        reading = read_gpus(self._roots, self.version())
        known = {gpu.pci_address for gpu in reading.gpus} | {problem.subject for problem in reading.problems}
        undriven = (problem for problem in pci.undriven(self._roots, AMD, DRIVERS) if problem.subject not in known)
        problems = [*reading.problems, *undriven]
        if reading.gpus and not health.is_there(self._roots):
            text = "the kernel offers no compute driver (/sys/class/kfd): containers can draw but not compute"
            problems.append(Problem("hardware.no-compute-driver", "node", text))
        version = semantic_version(self.version())
        return Facts(self.vendor, tuple(reading.gpus), driver_version=version, problems=tuple(problems))

    def version(self) -> str | None:
        """Return the kernel driver's version as the driver writes it; drivers that come with the kernel have none."""
        return pci.read_label(f"{self._roots.sys}/module/amdgpu/version")

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else."""
        functions = read_functions(self._roots, AMD, DRIVERS)
        modes = tuple(pci.read_text(function.folder / name) for function in functions for name in _MODE_FILES)
        generation = pci.read_text(f"{self._roots.sys}/class/kfd/kfd/topology/generation_id")
        nodes = tuple(pci.entries_of(Path(self._roots.sys, "class/kfd/kfd/topology/nodes")))
        drm = tuple((function.address, function.drm) for function in functions)
        limits = sysfs.is_offered(self._roots), tuple(sysfs.own_memory(self._roots, one.address) for one in functions)
        return Fingerprint(
            (drm, modes, generation, nodes, on_bus(self._roots, AMD), self.version(), self._device_nodes(), limits)
        )

    def common_edits(self) -> Edits:
        """Return what every container with one of these devices needs."""
        return common_edits(self._roots)

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:  # noqa: ARG002 - see AmdGpu.part
        """Return the edits for one device. Raises: HardwareError("hardware.node-missing", "hardware.gpu-lost")."""
        if not isinstance(gpu, AmdGpu):
            raise HardwareError("gpu-lost", f"{gpu.pci_address} is not a GPU of AMD", retry=Retry.NEVER)
        return device_edits(gpu, self._roots)

    def edit_problems(self) -> tuple[str, ...]:
        """Return the problem of a kernel without compute driver. Missing libraries are none: images bring their own."""
        if health.is_there(self._roots):
            return ()
        return ("/dev/kfd: the kernel offers no compute driver, so containers can draw but not compute",)

    def computing_on(self, address: str) -> frozenset[int]:
        """Return the processes that compute on a GPU (passthrough.ComputeLister)."""
        from dra_driver.hardware.amd.reading import computing_on  # noqa: PLC0415 - only where GPUs are passed through

        return computing_on(self._roots, address)

    def close(self) -> None:
        """Do nothing: no library and no device node is ever held."""

    # -- memory limits (port.MemoryLimiting, port.MemoryLimitShowing)

    def limit_memory(self, device: SharedDevice, cgroup: str, limit: int | None, deadline_s: float) -> None:  # noqa: ARG002 - a write of the kernel's files can't hang
        """Set, or remove, the limit of a cgroup."""
        sysfs.set_limit(self._region(device), Path(cgroup), limit)

    def memory_limit(self, device: SharedDevice, cgroup: str) -> int | None:
        """Return the limit of a cgroup in bytes, None where it has none."""
        return sysfs.limit_of(self._region(device), Path(cgroup))

    def compute_unit_edits(self, units: Sequence[int]) -> Edits:
        """Return what keeps the programs of a container to these units (port.ComputeUnitChoosing)."""
        return compute_unit_edits(units)

    def _region(self, device: SharedDevice) -> sysfs.Region:
        regions = sysfs.own_memory(self._roots, device.pci_address)
        if len(regions) != 1:
            text = f"the kernel has no region of memory for {device} that can be limited (dmem.capacity)"
            raise HardwareError("memory-limit-unsupported", text, hint="Linux 6.14 with CONFIG_CGROUP_DMEM is needed")
        return regions[0]

    def _vitals_source(self) -> VitalsSource:
        from dra_driver.hardware.amd.health import ResetLog, read_all_vitals  # noqa: PLC0415 - as above
        from dra_driver.hardware.evidence import KERNEL_LOG, KernelRecords  # noqa: PLC0415 - as above
        from dra_driver.hardware.sysfs import VitalsSource  # noqa: PLC0415 - as above

        log = KernelRecords(Path(self._roots.dev, KERNEL_LOG))
        return VitalsSource(partial(read_all_vitals, self._roots, ResetLog(log)), log)

    def _figures_reader(self) -> Callable[[], Iterable[Reading]]:
        from dra_driver.hardware.amd.metering import read_all  # noqa: PLC0415 - only where it is on

        return partial(read_all, self._roots)

    def _device_nodes(self) -> tuple[str, ...]:
        return (*read_device_nodes(self._roots), *(["kfd"] if Path(self._roots.dev, "kfd").exists() else []))


# AMD's GPUs and virtual functions for virtual machines: their attributes, and what the PCI bus shows of them.


def _group(found: FoundDevice) -> str | None:
    group = found.gpu.passthrough.group if found.gpu.passthrough else None
    return None if group is None else str(group)


PASSTHROUGH_ROWS: tuple[Published, ...] = (
    Published(
        "pciAddr", ValueKind.STRING, "The same as the standard pciBusID.", VFIO, lambda found: found.gpu.pci_address,
        since="0.3.0",
    ),
    Published("iommuGroup", ValueKind.STRING, "Number of the IOMMU group.", VFIO, _group, since="0.3.0"),
    Published(
        "isVF", ValueKind.BOOL, "Whether it is a virtual function of a GPU (SR-IOV).", VFIO, is_virtual, since="0.3.0"
    ),
    *(row for row in PASSED if row.name != "deviceID"),
)  # fmt: skip


def with_pci_facts(gpu: GpuFacts, roots: Roots) -> GpuFacts:
    """Return the facts of a function, completed by what its PCI numbers show."""
    if not isinstance(gpu, AmdGpu) or gpu.pci_id is None:
        return gpu
    device_id = gpu.pci_id >> 16
    folder = pci.function_folder(roots, gpu.pci_address)
    known = replace(gpu, device_id=device_id, product_name=product_name(device_id, pci.read_hex(folder / "revision")))
    physical = pci.read_physical(folder)
    return known if physical is None else _with_share(known, pci.function_folder(roots, physical))


# Compute units of GPUs that the driver for virtual machines (GIM) divides, by PCI device id; each has four SIMD units.
_COMPUTE_UNITS = {0x74A1: 304, 0x74A5: 304, 0x75A3: 256}
_MODE_OF_NUMBER = {1: "SPX", 2: "DPX", 3: "TPX", 4: "QPX", 8: "CPX"}  # by the number of virtual functions


def _with_share(gpu: AmdGpu, physical: Path) -> AmdGpu:
    """Return the facts of a virtual function with its part of the GPU that `physical` is the folder of.

    Source: ROCm/k8s-gpu-dra-driver, VFIO devices: memory, compute and SIMD units of the GPU by its virtual functions.
    """
    number = pci.read_size(physical / "sriov_numvfs")
    if number is None:
        return gpu
    memory = pci.read_size(physical / "mem_info_vram_total")
    units = _COMPUTE_UNITS.get(pci.read_hex(physical / "device"))
    return replace(
        gpu,
        memory_bytes=memory // number if memory else None,
        compute_units=units // number if units else None,
        simd_units=4 * units // number if units else None,
        compute_mode=_MODE_OF_NUMBER.get(number),
    )
