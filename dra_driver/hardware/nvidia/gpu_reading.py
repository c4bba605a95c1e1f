"""GPUs, read through the library and sysfs by their workers' threads, and joined by their NVLinks.

In: the GPU's index in the library. Out: a `GpuReading`: its facts, or why it has none, and the links from which the
domains of all GPUs are computed later. A fact that the GPU or the library does not have is None; one that can't be read
is None and a problem; without UUID, PCI address, minor or memory there are no facts at all. Readings, the PCI bus and
the links seen so far then become GPUs in PCI order with their NVLink domains, and problems.

The id of a domain is derived from the topology alone: it is the smallest switch address in the component or, where
there is no switch, the smallest GPU address. Links are remembered as long as the process lives, so a GPU that is lost
(or whose links are hidden by MIG mode) does not change the id of those that stay. After a restart without that GPU the
id is the same wherever a switch connects the others; it may differ only for bridged GPUs without a switch.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dra_driver.base.names import normal_pci_address
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware import pci
from dra_driver.hardware.facts import MigProfile, Problem
from dra_driver.hardware.nvidia import library
from dra_driver.hardware.nvidia.calls import Nvml
from dra_driver.hardware.nvidia.mig_reading import (
    ADDRESSING_MODES,
    ARCHITECTURES,
    BRANDS,
    SOMEWHERE,
    UNKNOWN,
    KnownProfiles,
    MigReading,
    read_partitions,
)
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.nvidia.queries import FABRIC_COMPLETED, MAX_LINKS, Handle, NvmlFault
from dra_driver.hardware.port import Roots

Edge = tuple[str, str]
_GPU, _NPU, _SWITCH = 0, 1, 2  # values of NVML_NVLINK_DEVICE_TYPE_*
_SWITCH_MARK = "switch/"
_HIDDEN_SWITCH = f"{_SWITCH_MARK}hidden"  # a switch whose address is hidden from a virtual machine


@dataclass(frozen=True, slots=True)
class LinkReading:
    """One GPU's links. `count` is None where the GPU has no NVLink; `fabric` is `<clusterUUID>.<cliqueId>`.

    `is_fabric_unknown` is true while the GPU is still joining its fabric, or fails to report it, so that its domain is
    not known.
    """

    count: int | None = None
    edges: frozenset[Edge] = frozenset()
    fabric: str | None = None
    is_fabric_unknown: bool = False


def read_links(nvml: Nvml, gpu: Handle, address: str) -> tuple[int | None, frozenset[Edge]]:
    """Return the number of a GPU's active links, and the edges to what they lead to.

    Raises: NvmlFault when a link that exists can't be read.
    """
    count: int | None = None
    edges: set[Edge] = set()
    for link in range(MAX_LINKS):
        try:
            is_active = nvml.link_is_active(gpu, link)
        except NvmlFault as fault:
            if fault.name == "INVALID_ARGUMENT":
                break
            if fault.is_absent:
                continue
            raise
        count = (count or 0) + is_active
        if is_active and (far_end := _read_far_end(nvml, gpu, link)):
            edges.add((address, far_end))
    return count, frozenset(edges)


def _read_far_end(nvml: Nvml, gpu: Handle, link: int) -> str | None:
    """Return what a link leads to, or None when it is no peer or the library does not report it."""
    try:
        kind = nvml.link_remote_type(gpu, link)
    except NvmlFault as fault:
        if not fault.is_absent:
            raise
        kind = _GPU  # an older library: a switch then counts as a peer outside this node, which connects GPUs as well
    try:
        address = normal_pci_address(nvml.link_remote_address(gpu, link))
    except (NvmlFault, ValueError) as fault:
        if isinstance(fault, NvmlFault) and fault.is_lost:
            raise
        address = ""
    if kind == _SWITCH:
        return f"{_SWITCH_MARK}{address}" if _is_real(address) else _HIDDEN_SWITCH
    return address if kind == _GPU and _is_real(address) else None


def _is_real(address: str) -> bool:
    return bool(address.strip("0:.")) and not address.startswith("ffff")


def read_fabric(nvml: Nvml, gpu: Handle) -> tuple[str | None, bool]:
    """Return the fabric that the GPU has joined, and whether it is still joining one.

    A completed registration with a cluster of zeros is a single machine's NVSwitch fabric, which has no name.
    Source: GPU feature discovery's label nvidia.com/gpu.clique.
    """
    fabric = nvml.fabric(gpu)
    if fabric.state == 0:  # the state "not supported"
        return None, False
    if fabric.state != FABRIC_COMPLETED:
        return None, True
    if fabric.status != 0:
        raise NvmlFault("nvmlDeviceGetGpuFabricInfo", f"registration failed with {fabric.status}")
    if not any(fabric.cluster_uuid):
        return None, False
    return f"{uuid.UUID(bytes=fabric.cluster_uuid)}.{fabric.clique_id}", False


def domains(edges: Iterable[Edge]) -> dict[str, str]:
    """Return, for each GPU that has a peer, the id of its connected component.

    >>> domains([("0000:65:00.0", "0000:01:00.0")])["0000:65:00.0"]
    'nvlink-0000-01-00-0'
    """
    parents: dict[str, str] = {}

    def root(vertex: str) -> str:
        parents.setdefault(vertex, vertex)
        while parents[vertex] != vertex:
            parents[vertex] = parents[parents[vertex]]
            vertex = parents[vertex]
        return vertex

    for one, other in edges:
        first, second = sorted((root(one), root(other)), key=_rank)
        parents[second] = first  # the root of a component is its smallest vertex, and switches sort first
    return {v: _domain_id(root(v)) for v in list(parents) if not v.startswith(_SWITCH_MARK)}


def _rank(vertex: str) -> tuple[bool, str]:
    return (not vertex.startswith(_SWITCH_MARK), vertex)


def _domain_id(vertex: str) -> str:
    kind = "nvswitch" if vertex.startswith(_SWITCH_MARK) else "nvlink"
    return f"{kind}-{vertex.removeprefix(_SWITCH_MARK).replace(':', '-').replace('.', '-')}"


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
            minor = library.read_minor(self._roots, self._address or "")
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
            brand=optional("brand", lambda: BRANDS.get(nvml.brand(gpu), UNKNOWN)),
            architecture=optional("architecture", lambda: ARCHITECTURES.get(nvml.architecture(gpu), UNKNOWN)),
            compute_capability="{}.{}.0".format(*capability) if capability else None,
            addressing_mode=optional("addressing mode", lambda: ADDRESSING_MODES.get(nvml.addressing_mode(gpu))),
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
            self._nvml.memory_limit(gpu, library.own_cgroup(self._roots))
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


def join_gpus(readings: Iterable[GpuReading], edges: Iterable[Edge]) -> tuple[NvidiaGpu, ...]:
    """Return the GPUs in PCI order, each with its links.

    `edges` are all links seen since the process began: a GPU in MIG mode, whose links are hidden, keeps its domain.
    """
    local = domains(edges)
    gpus = []
    for reading in readings:
        gpu, links = reading.facts, reading.links
        if gpu is None:
            continue
        has_links = bool(links.count) or gpu.mig_enabled
        domain = links.fabric or (local.get(gpu.pci_address) if has_links and not links.is_fabric_unknown else None)
        gpus.append(replace(gpu, nvlink_count=links.count, link_domain=domain))
    return tuple(sorted(gpus, key=lambda gpu: gpu.pci_address))
