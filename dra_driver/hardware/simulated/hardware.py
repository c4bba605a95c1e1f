"""The port, implemented by a profile on disk.

In: a profile's file, read again whenever it changed, and what was done to its GPUs since. Out: facts and edits as a
real vendor would return them, and partitions, created and destroyed. UUIDs and NVLink groups are derived from the
node's name and PCI addresses, so that the same hardware is found after a restart, and a partition that is created again
has the UUID it had before.

Nothing on the machine is looked at: simulated devices are character devices 1:3 (those of /dev/null), written with type
and numbers, so that any container runtime can create them although the host has no such node.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dra_driver.hardware.compute.program import ComputeProgram
from dra_driver.hardware.evidence import BusState, HealthReport
from dra_driver.hardware.facts import Facts, GpuFacts, MigProfile, PartitionFacts, Problem
from dra_driver.hardware.metered import MeterPlan, MeterReport
from dra_driver.hardware.mixing import MIXED, mixing_problems
from dra_driver.hardware.nvidia.facts import NvidiaGpu
from dra_driver.hardware.port import Fingerprint, Roots
from dra_driver.hardware.simulated.cuts import Cuts, placements_of
from dra_driver.hardware.simulated.health import HealthDrama
from dra_driver.hardware.simulated.health_section import ComputeBehaviour
from dra_driver.hardware.simulated.metering import SimulatedMeter
from dra_driver.hardware.simulated.mig import MigTable, Placement
from dra_driver.hardware.simulated.modes import Modes
from dra_driver.hardware.simulated.partitioning import Partitioning
from dra_driver.hardware.simulated.profile import Profile, SimulatedGpu, load_profile, profile_path
from dra_driver.hardware.simulated.resets import Resets
from dra_driver.model.boot import read_boot_id
from dra_driver.model.edits import DeviceNode, Edits
from dra_driver.model.errors import HardwareError, InputError, Retry
from dra_driver.model.sharing import ComputeMode, Interval, SharedDevice
from dra_driver.model.stamp import stamp_of

_PCI_VENDOR = 0x10DE
# used by this driver alone; changing it would rename all simulated hardware
_SPACE = uuid.UUID("6d3b9ac6-35cb-5c5f-9f6a-6f1d3c1b9a11")
_NULL_MAJOR, _NULL_MINOR = 1, 3
# Numbers of MIG capability nodes as the driver assigns them: 2 global ones, then 15 GPU instances for each GPU, each of
# which has one for itself and 8 for compute instances.
_CAPS_FIRST, _CAPS_INSTANCES, _CAPS_A_INSTANCE = 3, 15, 9


class SimulatedHardware:
    """A node's hardware as a profile describes it. Creating it raises InputError for a profile that can't be used.

    Args:
        profile: name of a shipped profile, or a file.
        roots: only the boot id is read from there.
        node_name: the node whose hardware this is.
        state_dir: the folder that keeps what changes at run time (partitions, modes); None keeps it in memory.
    """

    vendor = "simulated"

    def __init__(self, profile: str | Path, roots: Roots, *, node_name: str, state_dir: Path | None = None) -> None:
        self._path = profile_path(profile)
        self._node = node_name
        self._lock = threading.Lock()
        self._cuts = Cuts(state_dir, _boot_id(roots))
        self._partitioning = Partitioning(self._cuts, self._find)
        self._modes = Modes(state_dir, _boot_id(roots), self._find)
        self._drama = HealthDrama()
        self._resets: Resets | None = None
        self._roots, self._state_dir = roots, state_dir
        self._meter: SimulatedMeter | None = None
        self._seen: tuple[Hashable, Hashable] = (None, None)
        self._profile: Profile | None = None
        self._gpus: dict[str, SimulatedGpu] = {}  # as the profile defines them
        self._facts = Facts(self.vendor)
        self._processes: dict[str, tuple[int, ...]] = {}
        self._has_gpus = False
        self._uncut = self._facts  # as the profile says
        self._read()

    def is_present(self) -> bool:
        """Return whether the profile has a GPU, lost or not."""
        self.discover()
        return self._has_gpus

    def fingerprint(self) -> Fingerprint:
        """Return what changes with the profile's file and with every partition."""
        return Fingerprint(stamp_of(self._path), tuple(sorted(self._cuts.read().items())))

    def discover(self) -> Facts:
        """Return the facts of the profile as it is on disk now.

        Raises: HardwareError("hardware.profile-unusable") while the file is gone or faulty.
        """
        try:
            return self._read()
        except InputError as error:
            raise HardwareError("profile-unusable", error.message, hint=error.hint, retry=Retry.LATER) from error

    def common_edits(self) -> Edits:
        """Return the control nodes, and the environment that keeps other runtimes from adding GPUs."""
        nodes = tuple(_null(f"/dev/{name}") for name in ("nvidiactl", "nvidia-uvm"))
        return Edits(device_nodes=nodes, env=("NVIDIA_VISIBLE_DEVICES=void",))

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return the GPU's node, and for a partition its two capability nodes.

        Raises: HardwareError("hardware.node-missing") for a partition that does not exist now.
        """
        nodes = [_null(f"/dev/nvidia{gpu.minor}")]
        if partition is not None:
            if all(partition.uuid != known.uuid for known in self.partitions_now(gpu)):
                path = f"/dev/nvidia{gpu.minor}, gi{partition.gi_id}"
                raise HardwareError("node-missing", f"no capability nodes: {path} does not exist", retry=Retry.LATER)
            first = _CAPS_FIRST + (gpu.minor * _CAPS_INSTANCES + partition.gi_id) * _CAPS_A_INSTANCE
            nodes += [_null(f"/dev/nvidia-caps/nvidia-cap{cap}") for cap in (first, first + 1 + partition.ci_id)]
        return Edits(device_nodes=tuple(nodes))

    def edit_problems(self) -> tuple[str, ...]:
        """Return the remark that containers get device nodes without a device behind them."""
        return ("simulated hardware: device nodes are character devices 1:3, and there are no driver libraries",)

    def processes(self, gpu: GpuFacts, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the process ids that the profile lists for the GPU, which are the same for all of its partitions."""
        del partition
        self.discover()
        return self._processes.get(gpu.pci_address, ())

    def compute_program(self, gpu: GpuFacts, partition: PartitionFacts | None, *, is_thorough: bool) -> ComputeProgram:
        """Return the program that plays what the profile says (`health.compute`)."""
        del partition, is_thorough
        self.discover()
        known = self._gpus.get(gpu.pci_address)
        compute = known.health.compute if known else ComputeBehaviour.PASSES
        return ComputeProgram("dra_driver.hardware.compute.simulated_child", {"compute": str(compute)})

    def create_partition(self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float) -> PartitionFacts:
        """Create a partition and return it; see port.Partitionable."""
        placement = self._partitioning.create(gpu, profile.name, start, deadline_s)
        return _partition_facts(placement, f"{self._node}/{gpu.pci_address}")

    def destroy_partition(
        self, gpu: GpuFacts, uuid: str, deadline_s: float, *, placement: tuple[int, int] | None = None
    ) -> None:
        """Destroy a partition; see port.Partitionable. No partition is ever unfinished here."""
        del placement
        partition = next((known for known in self.partitions_now(gpu) if known.uuid == uuid), None)
        if partition is not None:
            self._partitioning.destroy(gpu, partition, deadline_s)

    def set_mig_mode(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch MIG mode; see port.Partitionable."""
        self._partitioning.set_mode(gpu, enabled, deadline_s)

    def mig_mode(self, gpu: GpuFacts, deadline_s: float) -> bool:
        """Return whether MIG mode is on now."""
        del deadline_s
        return self._now(gpu).mig_enabled

    def partitions_now(self, gpu: GpuFacts) -> tuple[PartitionFacts, ...]:
        """Return the GPU's current partitions."""
        return self._now(gpu).partitions

    def _now(self, gpu: GpuFacts) -> GpuFacts:
        known = next((known for known in self.discover().gpus if known.pci_address == gpu.pci_address), None)
        if known is None:
            raise HardwareError("gpu-lost", f"GPU {gpu.pci_address} is lost", retry=Retry.LATER)
        return known

    def unusable_now(self, gpu: GpuFacts) -> tuple[tuple[int, int], ...]:
        """Return nothing, because no instance is ever unfinished here."""
        del gpu
        return ()

    def compute_mode(self, device: SharedDevice, deadline_s: float) -> ComputeMode:
        """Return the compute mode; see port.Shareable."""
        del deadline_s
        return self._modes.compute_mode(device)

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode; see port.Shareable."""
        del deadline_s
        self._modes.set_compute_mode(device, mode)

    def time_slice(self, device: SharedDevice, deadline_s: float) -> Interval:
        """Return the time slice; see port.Shareable."""
        del deadline_s
        return self._modes.time_slice(device)

    def set_time_slice(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        """Set the time slice; see port.Shareable."""
        del deadline_s
        self._modes.set_time_slice(device, interval)

    def watch_health(self, notify: Callable[[], None], *, log_position: int) -> None:
        """Begin to observe; see port.HealthReporter. The file is looked at whenever a report is wanted."""
        del notify, log_position

    def health(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what the profile says of the GPUs' health; see port.HealthReporter."""
        del patience_s
        facts = self.discover()
        gpus = self._reset_state().after(self._gpus)
        return self._drama.report(facts, gpus, stamp_of(self._path), is_urgent=is_urgent)

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return what the bus shows of GPUs; one that the profile lacks is gone."""
        known = self._gpus
        return {gpu: known[gpu].health.bus if gpu in known else BusState.GONE for gpu in gpus}

    def end_health(self) -> None:
        """Do nothing, because nothing is held."""

    @property
    def needs_privilege(self) -> bool:
        """Return whether a reset runs a program below another root."""
        return self._reset_state().has_program

    def await_return(self) -> None:
        """Do nothing, because no call needs a library."""

    def is_closed(self) -> bool:
        """Return true, because nothing is held open."""
        return True

    def open_by(self, gpu: GpuFacts) -> tuple[int, ...]:
        """Return the process ids that the profile lists for the GPU."""
        return self.processes(gpu, None)

    def persistence(self, gpu: GpuFacts, deadline_s: float) -> None:
        """Return nothing, because simulated GPUs have no persistence mode."""

    def set_persistence(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Do nothing; see `persistence`."""

    def reset(self, gpus: Sequence[GpuFacts], deadline_s: float) -> None:
        """Reset GPUs; see port.Resettable."""
        self.discover()
        self._reset_state().reset(gpus, self._gpus, deadline_s)

    def _reset_state(self) -> Resets:
        if self._resets is None:
            self._resets = Resets(self._state_dir, _boot_id(self._roots), self._roots)
        return self._resets

    def begin_metering(self, plan: MeterPlan) -> None:
        """Begin to measure; see port.Metered. The file is looked at once a beat, when the report is wanted."""
        self._meter = SimulatedMeter(plan)

    def meter_report(self) -> MeterReport:
        """Return what the profile says of the GPUs; see port.Metered."""
        meter = self._meter
        return MeterReport() if meter is None else meter.report(self.discover(), self._gpus)

    def end_metering(self) -> None:
        """Stop measuring."""
        self._meter = None

    def close(self) -> None:
        """Do nothing, because nothing is held open."""

    def _find(self, pci_address: str) -> SimulatedGpu | None:
        self.discover()
        return self._gpus.get(pci_address)

    def _read(self) -> Facts:
        with self._lock:
            file, cuts = stamp_of(self._path), self._cuts.fingerprint()
            seen_file, seen_cuts = self._seen
            profile = self._profile
            if profile is None or file is None or file != seen_file:
                profile = load_profile(self._path)
                self._take(profile)
            elif cuts == seen_cuts:
                return self._facts
            self._facts = _with_cuts(self._uncut, profile, self._cuts, self._node)
            self._seen = (file, cuts)
            return self._facts

    def _take(self, profile: Profile) -> None:
        self._profile, self._uncut = profile, facts_of(profile, self._node)
        self._has_gpus = bool(profile.gpus)
        self._processes = {gpu.pci_address: gpu.processes for gpu in profile.gpus if gpu.processes}
        self._gpus = {gpu.pci_address: gpu for gpu in profile.gpus}


def _with_cuts(facts: Facts, profile: Profile, cuts: Cuts, node_name: str) -> Facts:
    """Return the facts of a profile with the partitions that there are now."""
    known = cuts.read()
    placements = {
        gpu.pci_address: placements_of(gpu, known[gpu.pci_address]) for gpu in profile.gpus if gpu.pci_address in known
    }
    gpus = tuple(_cut_again(gpu, placements, node_name) for gpu in facts.gpus)
    mixing = mixing_problems(gpus, profile.driver_version)
    kept = (problem for problem in facts.problems if problem.code != MIXED)
    return replace(facts, gpus=gpus, problems=(*kept, *mixing))


def _cut_again(gpu: GpuFacts, placements: Mapping[str, tuple[Placement, ...] | None], node_name: str) -> GpuFacts:
    if gpu.pci_address not in placements:
        return gpu
    now = placements[gpu.pci_address]
    return replace(gpu, mig_enabled=now is not None, partitions=_partitions(now, gpu.pci_address, node_name))


def _boot_id(roots: Roots) -> str:
    try:
        return read_boot_id(roots.proc)
    except OSError:
        return ""


def facts_of(profile: Profile, node_name: str) -> Facts:
    """Return what discovery would find on a node with this profile. Pure."""
    if profile.waiting_for:
        return Facts("simulated", waiting_for=profile.waiting_for)
    gpus = sorted(profile.gpus, key=lambda gpu: gpu.pci_address)
    found = tuple(_gpu_facts(profile, gpu, node_name) for gpu in gpus if not gpu.is_lost)
    lost = [Problem("hardware.gpu-lost", gpu.pci_address, "the GPU is lost") for gpu in gpus if gpu.is_lost]
    return Facts(
        "simulated",
        gpus=found,
        driver_version=profile.driver_version,
        runtime_version=profile.cuda_driver_version,
        problems=(*lost, *mixing_problems(found, profile.driver_version)),
    )


def _gpu_facts(profile: Profile, gpu: SimulatedGpu, node_name: str) -> NvidiaGpu:
    model = gpu.model
    domain = gpu.nvlink_fabric
    if gpu.nvlink_group:
        domain = str(uuid.uuid5(_SPACE, f"{node_name}/nvlink/{gpu.nvlink_group}"))
    links = gpu.links_up if gpu.links_up is not None else model.nvlinks if domain else None
    return NvidiaGpu(
        uuid=f"GPU-{uuid.uuid5(_SPACE, f'{node_name}/{gpu.pci_address}')}",
        pci_address=gpu.pci_address,
        minor=gpu.minor,
        nodes=(f"nvidia{gpu.minor}",),
        memory_bytes=None if model.memory_mib is None else model.memory_mib << 20,
        product_name=model.product_name,
        brand=model.brand,
        architecture=model.architecture,
        compute_capability=model.compute_capability,
        addressing_mode=profile.addressing_mode,
        numa_node=gpu.numa_node,
        pcie_root=gpu.pcie_root,
        link_domain=domain,
        nvlink_count=links,
        mig_capable=model.mig_capable,
        mig_enabled=gpu.mig is not None,
        ecc_enabled=gpu.ecc_enabled,
        serial=gpu.serial,
        vbios_version=gpu.vbios_version,
        memory_bandwidth_bytes_per_s=model.memory_bandwidth_gb_per_s and model.memory_bandwidth_gb_per_s * 10**9,
        power_limit_max_w=model.power_limit_max_w,
        sm_clock_max_mhz=model.sm_clock_max_mhz,
        partitions=_partitions(gpu.mig, gpu.pci_address, node_name),
        mig_profiles=_mig_profiles(model.mig) if model.mig else (),
        mig_toggles_without_reset=bool(model.mig and model.mig.toggles_without_reset),
        pci_id=int(model.pci_device_id, 16) << 16 | _PCI_VENDOR if model.pci_device_id else None,
    )


def _partitions(
    placements: tuple[Placement, ...] | None, pci_address: str, node_name: str
) -> tuple[PartitionFacts, ...]:
    in_order = sorted(placements or (), key=lambda placement: placement.start)
    return tuple(_partition_facts(placement, f"{node_name}/{pci_address}") for placement in in_order)


def _mig_profiles(table: MigTable) -> tuple[MigProfile, ...]:
    """Return the profiles about which everything is known, in order of id."""
    made = []
    for profile in table.profiles:
        engines = profile.engines
        if not profile.has_figures or engines is None or not profile.starts:
            continue
        made.append(
            MigProfile(
                name=profile.name,
                gi_profile_id=profile.gi_profile_id or 0,
                slices=profile.compute_slices,
                size=profile.memory_slices,
                starts=profile.starts,
                memory_bytes=(profile.memory_mib or 0) << 20,
                multiprocessors=profile.multiprocessors or 0,
                copy_engines=engines.copy,
                decoders=engines.decoders,
                encoders=engines.encoders,
                jpeg_engines=engines.jpeg,
                ofa_engines=engines.ofa,
                max_instances=profile.max_instances,
            )
        )
    return tuple(sorted(made, key=lambda profile: profile.gi_profile_id))


def _partition_facts(placement: Placement, gpu: str) -> PartitionFacts:
    """Return the facts of a partition; the decoder has checked that all of them are known."""
    profile, engines = placement.profile, placement.profile.engines
    if profile.gi_profile_id is None or profile.memory_mib is None or not (profile.multiprocessors and engines):
        raise InputError("profile", f"the figures of {profile.name} are not known")
    return PartitionFacts(
        uuid=f"MIG-{uuid.uuid5(_SPACE, f'{gpu}/{profile.name}/{placement.start}')}",
        profile=profile.name,
        gi_profile_id=profile.gi_profile_id,
        gi_id=placement.start + 1,
        ci_id=0,
        start=placement.start,
        size=profile.memory_slices,
        memory_bytes=profile.memory_mib << 20,
        multiprocessors=profile.multiprocessors,
        copy_engines=engines.copy,
        decoders=engines.decoders,
        encoders=engines.encoders,
        jpeg_engines=engines.jpeg,
        ofa_engines=engines.ofa,
    )


def _null(path: str) -> DeviceNode:
    return DeviceNode(path=path, major=_NULL_MAJOR, minor=_NULL_MINOR, file_mode=0o666)
