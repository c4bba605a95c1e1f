"""One GPU, read through the library and sysfs by its worker's thread.

In: the GPU's index in the library. Out: a `GpuReading`: its facts, or why it has none, and the links from which the
domains of all GPUs are computed later. A fact that the GPU or the library does not have is None; one that can't be read
is None and a problem; without UUID, PCI address, minor or memory there are no facts at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from dra_driver.hardware import pci
from dra_driver.hardware.facts import MigProfile, Problem
from dra_driver.hardware.nvidia import sysfs
from dra_driver.hardware.nvidia.facts import NvidiaGpu
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.nvml import Nvml
from dra_driver.hardware.nvidia.reading import names
from dra_driver.hardware.nvidia.reading.links import LinkReading, read_fabric, read_links
from dra_driver.hardware.nvidia.reading.partitions import SOMEWHERE, MigReading, read_partitions
from dra_driver.hardware.nvidia.reading.profiles import KnownProfiles
from dra_driver.hardware.port import Roots
from dra_driver.model.names import normal_pci_address
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

T = TypeVar("T")
_BITS_PER_BYTE = 8
_TRANSFERS_PER_CLOCK = 2
_HERTZ_PER_MHZ = 1_000_000
_TOGGLES_FROM = 9  # CUDA major version of Hopper; from Hopper on, MIG mode changes without a reset


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What one reading found. `address` is None when not even that could be read."""

    index: int
    address: str | None = None
    facts: NvidiaGpu | None = None
    links: LinkReading = field(default_factory=LinkReading)
    problems: tuple[Problem, ...] = ()
    is_lost: bool = False


def read_gpu(nvml: Nvml, index: int, roots: Roots, profiles: KnownProfiles) -> GpuReading:
    """Read the GPU at `index`. Never raises, because even a bug of ours must not take the other GPUs with it."""
    reader = _GpuReader(nvml, index, roots, profiles)
    try:
        return reader.read()
    except Exception as error:
        log.exception("a GPU could not be read", extra=fields(vendor="nvidia", count=index))
        return reader.dropped(NvmlFault("reading", repr(error)))


class _GpuReader:
    """The state of one reading: the GPU's address as far as known, and the problems."""

    def __init__(self, nvml: Nvml, index: int, roots: Roots, profiles: KnownProfiles) -> None:
        self._nvml = nvml
        self._index = index
        self._roots = roots
        self._profiles = profiles
        self._address: str | None = None
        self._problems: list[Problem] = []

    @property
    def _subject(self) -> str:
        return self._address or "node"

    def read(self) -> GpuReading:
        try:
            gpu = self._nvml.gpu(self._index)
            self._address = normal_pci_address(self._nvml.pci_address(gpu))
            uuid, minor = self._required_text(self._nvml.uuid(gpu)), self._minor(gpu)
            memory_bytes = self._memory_bytes(gpu)
            facts = self._facts(gpu, uuid, minor, memory_bytes)
            links = self._links(gpu)
        except NvmlFault as fault:
            return self.dropped(fault)
        except ValueError as fault:  # the text is not a PCI address
            return self.dropped(NvmlFault("nvmlDeviceGetPciInfo", str(fault)))
        return GpuReading(self._index, self._address, facts, links, tuple(self._problems))

    def dropped(self, fault: NvmlFault) -> GpuReading:
        """Return a reading without facts, with a problem that explains why."""
        which = "GPU" if self._address else f"GPU at index {self._index}"
        code, what = ("gpu-lost", "is lost") if fault.is_lost else ("gpu-unreadable", "is left out")
        problem = Problem(f"hardware.{code}", self._subject, f"{which} {what}: {fault}")
        return GpuReading(self._index, self._address, problems=(*self._problems, problem), is_lost=fault.is_lost)

    # -- facts without which a GPU is dropped

    def _required_text(self, text: str) -> str:
        if not text:
            raise NvmlFault("nvmlDeviceGetUUID", "returned an empty text")
        return text

    def _minor(self, gpu: Handle) -> int:
        try:
            return self._nvml.minor(gpu)
        except NvmlFault as fault:
            minor = sysfs.read_minor(self._roots, self._address or "")
            if minor is None or fault.is_lost:
                raise
            return minor

    def _memory_bytes(self, gpu: Handle) -> int | None:
        try:
            return self._nvml.memory_bytes(gpu)
        except NvmlFault as fault:
            if not fault.is_absent:
                raise
            return None

    # -- facts that may be missing

    def _optional(self, fact: str, read: Callable[[], T | None]) -> T | None:
        """Return a fact or None; any failure except "there is no such fact" becomes a problem.

        Raises: NvmlFault when the GPU is lost, because it then has no facts at all.
        """
        try:
            value = read()
        except NvmlFault as fault:
            self._note(fact, fault)
            return None
        return value if value != "" else None

    def _note(self, fact: str, fault: NvmlFault) -> None:
        if fault.is_lost:
            raise fault
        if not fault.is_absent:
            self._problems.append(Problem("hardware.fact-unreadable", self._subject, f"no {fact}: {fault}"))

    def _facts(self, gpu: Handle, uuid: str, minor: int, memory_bytes: int | None) -> NvidiaGpu:
        nvml, optional, address = self._nvml, self._optional, self._address or ""
        capable, enabled, mig = self._mig(gpu, uuid, memory_bytes)
        capability = optional("compute capability", lambda: nvml.compute_capability(gpu))
        toggles = bool(capable and capability and capability[0] >= _TOGGLES_FROM)
        return NvidiaGpu(
            uuid=uuid,
            pci_address=address,
            minor=minor,
            nodes=(f"nvidia{minor}",),
            memory_bytes=memory_bytes,
            product_name=optional("product name", lambda: nvml.name(gpu)),
            brand=optional("brand", lambda: names.BRANDS.get(nvml.brand(gpu), names.UNKNOWN)),
            architecture=optional(
                "architecture", lambda: names.ARCHITECTURES.get(nvml.architecture(gpu), names.UNKNOWN)
            ),
            compute_capability="{}.{}.0".format(*capability) if capability else None,
            addressing_mode=optional("addressing mode", lambda: names.ADDRESSING_MODES.get(nvml.addressing_mode(gpu))),
            numa_node=pci.read_numa_node(self._roots, address),
            pcie_root=pci.read_pcie_root(self._roots, address),
            mig_capable=capable,
            mig_enabled=enabled,
            ecc_enabled=optional("ECC mode", lambda: nvml.ecc_enabled(gpu)),
            serial=optional("serial number", lambda: nvml.serial(gpu)),
            vbios_version=optional("VBIOS version", lambda: nvml.vbios_version(gpu)),
            memory_bandwidth_bytes_per_s=optional("memory bandwidth", lambda: self._memory_bandwidth(gpu)),
            power_limit_max_w=optional("power limit", lambda: nvml.power_limit_max_mw(gpu) // 1000 or None),
            sm_clock_max_mhz=optional("multiprocessor clock", lambda: nvml.sm_clock_max_mhz(gpu) or None),
            partitions=mig.partitions,
            unusable=mig.unusable,
            mig_profiles=self._mig_profiles(gpu, uuid, memory_bytes, expected=enabled or toggles) if capable else (),
            mig_toggles_without_reset=toggles,
            pci_id=pci.read_pci_id(self._roots, address),
            limits_memory=not enabled and self._limits_memory(gpu),
        )

    def _limits_memory(self, gpu: Handle) -> bool:
        """Return whether the driver reports a cgroup's limit of this GPU's memory; the limit can then also be set."""
        try:
            self._nvml.memory_limit(gpu, sysfs.own_cgroup(self._roots))
        except NvmlFault as fault:
            if fault.is_lost:
                raise
            return fault.name == "NOT_FOUND"  # NOT_FOUND: no limit is set for this cgroup or any above it
        return True

    def _memory_bandwidth(self, gpu: Handle) -> int | None:
        """Return the memory's highest bandwidth in bytes per second: two transfers a clock, each as wide as the bus.

        NVIDIA's data sheets have this figure, rounded, for every GPU of the shipped profiles (HBM, GDDR6 and GDDR7).
        """
        clock, bits = self._nvml.memory_clock_max_mhz(gpu), self._nvml.memory_bus_bits(gpu)
        return clock * _HERTZ_PER_MHZ * _TRANSFERS_PER_CLOCK * bits // _BITS_PER_BYTE or None

    def _mig(self, gpu: Handle, uuid: str, memory_bytes: int | None) -> tuple[bool | None, bool, MigReading]:
        """Return whether the GPU can do MIG, whether MIG mode is on, and how the GPU is partitioned.

        Where the mode can't be read, existing MIG devices prove that it is on.
        """
        try:
            enabled, pending = self._nvml.mig_mode(gpu)
        except NvmlFault as fault:
            if fault.name == "NOT_SUPPORTED":
                return False, False, MigReading()
            self._note("MIG mode", fault)
            found = self._partitions(gpu, uuid, memory_bytes)
            return (True, True, found) if found.partitions else (None, False, MigReading())
        if pending != enabled:
            wanted = "on" if pending else "off"
            text = f"MIG mode will be {wanted} after the GPU's next reset"
            self._problems.append(Problem("hardware.mig-mode-pending", self._subject, text))
        return True, enabled, self._partitions(gpu, uuid, memory_bytes) if enabled else MigReading()

    def _partitions(self, gpu: Handle, uuid: str, memory_bytes: int | None) -> MigReading:
        found = self._optional(
            "MIG devices",
            lambda: read_partitions(
                self._nvml,
                gpu,
                self._profiles.of_instances(self._nvml, gpu, uuid),
                subject=self._subject,
                gpu_memory_bytes=memory_bytes,
            ),
        )
        if found is None:  # no placement is offered where unknown instances may exist
            return MigReading(unusable=(SOMEWHERE,))
        self._problems.extend(found.problems)
        return found

    def _mig_profiles(
        self, gpu: Handle, uuid: str, memory_bytes: int | None, *, expected: bool
    ) -> tuple[MigProfile, ...]:
        """Return the profiles of the GPU. If `expected` (it could be partitioned now), it is a problem to have none."""
        found = self._optional("MIG profiles", lambda: self._profiles.read(self._nvml, gpu, uuid, memory_bytes))
        if found == () and expected and memory_bytes:
            text = "the driver does not report which MIG partitions fit (some drivers only do so while MIG mode is on)"
            self._problems.append(Problem("hardware.mig-profiles-unknown", self._subject, text))
        return found or ()

    # -- links

    def _links(self, gpu: Handle) -> LinkReading:
        address = self._address or ""
        count, edges = self._optional("NVLinks", lambda: read_links(self._nvml, gpu, address)) or (None, frozenset())
        fabric, is_unknown = self._fabric(gpu)
        return LinkReading(count, edges, fabric, is_unknown)

    def _fabric(self, gpu: Handle) -> tuple[str | None, bool]:
        """Return the fabric that the GPU has joined, and whether that (and with it its domain) is unknown."""
        try:
            fabric, is_pending = read_fabric(self._nvml, gpu)
        except NvmlFault as fault:
            self._note("NVLink fabric", fault)
            return None, not fault.is_absent
        if is_pending:
            text = "the GPU has not joined its NVLink fabric yet (is the fabric manager running?)"
            self._problems.append(Problem("hardware.fabric-pending", self._subject, text))
        return fabric, is_pending
