"""The port, implemented by a profile on disk.

In: a profile's file, read again whenever it changes, and the changes made to its GPUs since. Out: facts and edits as a
real vendor would return them, and partitions, created and destroyed. The hardware is the same after a restart, and a
partition that is created again has the UUID that it had before. Nothing else on the machine is read.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path

from dra_driver.base.errors import HardwareError, InputError, Retry
from dra_driver.base.machine import Stamp, read_boot_id, stamp_of
from dra_driver.base.wire import ComputeMode, Interval, SharedDevice
from dra_driver.hardware.driver_binding import BusAccess
from dra_driver.hardware.evidence import BusState, ComputeProgram, HealthReport
from dra_driver.hardware.facts import (
    ChannelFacts,
    CreatedPartition,
    Edits,
    Facts,
    GpuFacts,
    MigProfile,
    PartitionFacts,
    PlacementFacts,
)
from dra_driver.hardware.metered import PROFILED, MeterPlan, MeterReport, Reading, Values
from dra_driver.hardware.port import Fingerprint, Roots
from dra_driver.hardware.simulated import kernel
from dra_driver.hardware.simulated.kernel import SimulatedBus, SimulatedHealthReporter
from dra_driver.hardware.simulated.models import Placement
from dra_driver.hardware.simulated.partitioning import Modes, PartitionChanges, Partitioning
from dra_driver.hardware.simulated.profile import (
    NOT_METERED,
    ComputeBehaviour,
    Profile,
    SimulatedGpu,
    SimulatedMetering,
    load_profile,
    profile_path,
)
from dra_driver.hardware.simulated.profile_facts import ChangedFacts, facts_of, partition_facts
from dra_driver.hardware.simulated.state_file import Resets

# Followed profile: the file that describes the hardware, read again when it changes, and the partitions made since.


class FollowedProfile:
    """A profile on disk. Creating it raises InputError for one that can't be used."""

    def __init__(self, profile: str | Path, node: str, changes: PartitionChanges, vendor: str) -> None:
        self._path = profile_path(profile)
        self._node = node
        self._changes = changes
        self._lock = threading.Lock()
        self._seen: tuple[Hashable, Hashable] = (None, None)
        self._profile: Profile | None = None
        self._known = ChangedFacts(Facts(vendor), Facts(vendor))
        self.node_major: int | None = None
        self.gpus: Mapping[str, SimulatedGpu] = {}  # by PCI address, as the profile defines them
        self._read()

    def stamp(self) -> Stamp | None:
        """Return the stamp of the file as it is now."""
        return stamp_of(self._path)

    def facts(self) -> Facts:
        """Return the facts of the profile as it is on disk now.

        Raises: HardwareError("hardware.profile-unusable") while the file is gone or faulty.
        """
        try:
            return self._read()
        except InputError as error:
            raise HardwareError("profile-unusable", error.message, hint=error.hint, retry=Retry.LATER) from error

    def find(self, pci_address: str) -> SimulatedGpu | None:
        """Return the profile's GPU at an address, without the partitions that were created since."""
        if (stamp := self.stamp()) is None or stamp != self._seen[0]:
            self.facts()
        return self.gpus.get(pci_address)

    def _read(self) -> Facts:
        with self._lock:
            file, changes = stamp_of(self._path), self._changes.fingerprint()
            seen_file, seen_changes = self._seen
            profile = self._profile
            if profile is None or file is None or file != seen_file:
                profile = load_profile(self._path)
                self._take(profile)
            elif changes == seen_changes:
                return self._known.facts
            self._known = self._known.after(self._changes.read(), profile, self._node)
            self._seen = (file, changes)
            return self._known.facts

    def _take(self, profile: Profile) -> None:
        initial = facts_of(profile, self._node)
        self.node_major = profile.node_major
        self._profile, self._known = profile, ChangedFacts(initial, initial)
        self.gpus = {gpu.pci_address: gpu for gpu in profile.gpus}


# The meter of simulated GPUs: reports of what their profile states, in the form of a real vendor's.

_EARLY_SECONDS = 0.05  # a thread that waits for a beat may wake earlier by this much


class SimulatedMeter:
    """The meter of simulated GPUs: a report that is requested one period after the last round begins a new round."""

    def __init__(self, plan: MeterPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan, self._clock = plan, clock
        self._report = MeterReport()
        self._read_at = float("-inf")

    def report(self, facts: Facts, gpus: Mapping[str, SimulatedGpu]) -> MeterReport:
        """Return the newest readings; while a GPU of the profile hangs, there are no new ones."""
        now = self._clock()
        if now - self._read_at < self._plan.beat_s - _EARLY_SECONDS or any(gpu.health.hangs for gpu in gpus.values()):
            return self._report
        self._read_at = now
        xids, last = _xids(gpus)
        readings = (one for gpu in facts.gpus for one in self._readings(gpu, gpus[gpu.pci_address].metering, now))
        self._report = MeterReport(tuple(readings), xids, last)
        return self._report

    def _readings(self, gpu: GpuFacts, section: SimulatedMetering, now: float) -> Iterator[Reading]:
        if section is NOT_METERED:
            return
        of_all = None if gpu.mig_enabled else tuple(process.use for process in section.processes)
        yield Reading(gpu.pci_address, now, self._measured(section.values), processes=of_all)
        for gi_id in dict.fromkeys(partition.gi_id for partition in gpu.partitions):
            uses = tuple(process.use for process in section.processes if process.gi_id == gi_id)
            yield Reading(gpu.pci_address, now, self._measured(section.of_instance(gi_id)), gi_id, uses)

    def _measured(self, values: Values) -> Values:
        if self._plan.with_profiling:
            return values
        return {quantity: value for quantity, value in values.items() if quantity not in PROFILED}


def _xids(
    gpus: Mapping[str, SimulatedGpu],
) -> tuple[dict[tuple[str, int | None], dict[int, int]], dict[tuple[str, int | None], int]]:
    counts: dict[tuple[str, int | None], Counter[int]] = {}
    last: dict[tuple[str, int | None], int] = {}
    for address, gpu in gpus.items():
        for xid in gpu.health.xids:
            counts.setdefault((address, xid.gi_id), Counter())[xid.code] += 1
            last[address, xid.gi_id] = xid.code
    return {key: dict(found) for key, found in counts.items()}, last


class SimulatedHardware:
    """A node's hardware as a profile describes it. Creating it raises InputError for a profile that can't be used.

    Args:
        profile: name of a shipped profile, or a file.
        roots: only the boot id is read from there.
        node_name: the node whose hardware this is.
        state_dir: the folder for what changes at run time (partitions, modes); with None it is kept in memory.
    """

    vendor = "simulated"

    def __init__(self, profile: str | Path, roots: Roots, *, node_name: str, state_dir: Path | None = None) -> None:
        self._node = node_name
        self._changes = PartitionChanges(state_dir, _boot_id(roots))
        self._profile = FollowedProfile(profile, node_name, self._changes, self.vendor)
        self._nodes = kernel.SimulatedNodes(self._profile.node_major, roots)
        self._partitioning = Partitioning(self._changes, self._profile.find, self._nodes.users)
        self._modes = Modes(state_dir, _boot_id(roots), self._profile.find)
        self._health_reporter = SimulatedHealthReporter()
        self._resets: Resets | None = None
        self._roots, self._state_dir = roots, state_dir
        self._meter: SimulatedMeter | None = None
        self._bus = SimulatedBus(state_dir, _boot_id(roots), roots, self._profile.node_major)

    def is_present(self) -> bool:
        """Return whether the profile has a GPU, lost or not."""
        self.discover()
        return bool(self._profile.gpus)

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes with the profile's file, every partition, and GPUs handed to virtual machines."""
        bound_elsewhere = tuple(sorted(self._bus.bound_elsewhere(self._profile.gpus)))
        return Fingerprint((self._profile.stamp(), bound_elsewhere), tuple(sorted(self._changes.read().items())))

    def discover(self) -> Facts:
        """Return the facts of the profile as it is on disk now.

        Raises: HardwareError("hardware.profile-unusable") while the file is gone or faulty.
        """
        return self._bus.without_gpus_bound_elsewhere(self._profile.facts())

    def channel(self, facts: Facts) -> ChannelFacts | None:
        """Return a channel where all GPUs are in one clique; see port.ChannelOffering."""
        domains = {gpu.link_domain or "" for gpu in facts.gpus}
        domain = domains.pop() if len(domains) == 1 else ""
        return ChannelFacts(domain, kernel.CHANNEL_MAJOR) if "." in domain else None

    def channel_edits(self) -> Edits:
        """Return the node of channel 0; see port.ChannelOffering."""
        return kernel.channel_edits()

    def channel_state(self) -> str | None:
        """Return None: no daemon is simulated; see port.ChannelOffering."""
        return None

    def bus_access(self) -> BusAccess:
        """Return the PCI bus of these GPUs; see passthrough.OwnBus."""
        return self._bus.access(self._profile.facts().gpus)

    def common_edits(self) -> Edits:
        """Return the control nodes, and the environment that keeps other runtimes from adding GPUs."""
        return self._nodes.common_edits()

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return the GPU's node, and for a partition its two capability nodes.

        Raises: HardwareError("hardware.node-missing") for a partition that does not exist now.
        """
        if partition is not None and self._existing(gpu, partition.uuid) is None:
            path = f"/dev/nvidia{gpu.minor}, gi{partition.gi_id}"
            raise HardwareError("node-missing", f"no capability nodes: {path} does not exist", retry=Retry.LATER)
        return self._nodes.device_edits(gpu, partition)

    def edit_problems(self) -> tuple[str, ...]:
        """Return one problem: containers get device nodes without a device behind them."""
        numbers = "1:3" if self._nodes.major is None else f"of major {self._nodes.major}"
        return (f"simulated hardware: device nodes are character devices {numbers}, and there are no driver libraries",)

    def processes(self, gpu: GpuFacts, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the processes that the profile lists for the GPU, and those that have the device's node open."""
        self.discover()
        known = self._profile.gpus.get(gpu.pci_address)
        return self._nodes.users(known, partition) if known else ()

    def compute_program(self, gpu: GpuFacts, partition: PartitionFacts | None, *, is_thorough: bool) -> ComputeProgram:
        """Return the program that ends as the profile's `health.compute` states."""
        del partition, is_thorough
        self.discover()
        known = self._profile.gpus.get(gpu.pci_address)
        compute = known.health.compute if known else ComputeBehaviour.PASSES
        return ComputeProgram("dra_driver.hardware.simulated_child", {"compute": str(compute)})

    def create_partition(
        self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float, *, switches_on: bool = False
    ) -> CreatedPartition:
        """Create a partition and return it; see port.Partitionable."""
        made = self._partitioning.create(gpu, profile.name, start, deadline_s, switches_on=switches_on)
        return CreatedPartition(self._facts_at(gpu, made.placement), made.is_new, made.has_switched)

    def placement_now(self, gpu: GpuFacts, profile: MigProfile, start: int) -> PlacementFacts:
        """Return what is at one placement; see port.Partitionable."""
        existing = self._partitioning.placements(gpu)
        at = next((one for one in existing or () if (one.profile.name, one.start) == (profile.name, start)), None)
        return PlacementFacts(existing is not None, self._facts_at(gpu, at) if at else None)

    def _existing(self, gpu: GpuFacts, uuid: str) -> PartitionFacts | None:
        """Return the partition with a UUID if it exists now."""
        found = (self._facts_at(gpu, placement) for placement in self._partitioning.placements(gpu) or ())
        return next((partition for partition in found if partition.uuid == uuid), None)

    def _facts_at(self, gpu: GpuFacts, placement: Placement) -> PartitionFacts:
        return partition_facts(placement, f"{self._node}/{gpu.pci_address}")

    def destroy_partition(
        self,
        gpu: GpuFacts,
        uuid: str,
        deadline_s: float,
        *,
        placement: tuple[int, int] | None = None,
        switches_off: bool = False,
    ) -> bool:
        """Destroy a partition; see port.Partitionable. No partition is ever unfinished here."""
        del placement
        partition = self._existing(gpu, uuid)
        if partition is None and not switches_off:
            return False
        return self._partitioning.destroy(gpu, partition, deadline_s, switches_off=switches_off)

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
        """Begin to observe; see port.HealthReporter. The file is read when a report is asked for."""
        del notify, log_position

    def health(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return the health that the profile defines for the GPUs; see port.HealthReporter."""
        del patience_s
        facts = self.discover()
        gpus = self._reset_state().after(self._profile.gpus)
        return self._health_reporter.report(facts, gpus, self._profile.stamp(), is_urgent=is_urgent)

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return the state of GPUs on the bus; one that the profile lacks is gone."""
        known, bound_elsewhere = self._profile.gpus, self._bus.bound_elsewhere(gpus)
        return {
            gpu: BusState.ELSEWHERE
            if gpu in bound_elsewhere
            else known[gpu].health.bus
            if gpu in known
            else BusState.GONE
            for gpu in gpus
        }

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
        """Return the processes on the GPU and on its partitions."""
        return self.processes(gpu, None)

    def persistence(self, gpu: GpuFacts, deadline_s: float) -> None:
        """Return None, because simulated GPUs have no persistence mode."""

    def set_persistence(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Do nothing; see `persistence`."""

    def reset(self, gpus: Sequence[GpuFacts], deadline_s: float) -> None:
        """Reset GPUs; see port.Resettable."""
        self.discover()
        self._reset_state().reset(gpus, self._profile.gpus, deadline_s)

    def _reset_state(self) -> Resets:
        if self._resets is None:
            self._resets = Resets(self._state_dir, _boot_id(self._roots), self._roots)
        return self._resets

    def begin_metering(self, plan: MeterPlan) -> None:
        """Begin to measure; see port.Metered. The file is read once in each round, when the report is asked for."""
        self._meter = SimulatedMeter(plan)

    def meter_report(self) -> MeterReport:
        """Return the measurements that the profile defines for the GPUs; see port.Metered."""
        meter = self._meter
        return MeterReport() if meter is None else meter.report(self.discover(), self._profile.gpus)

    def end_metering(self) -> None:
        """Stop measuring."""
        self._meter = None

    def close(self) -> None:
        """Do nothing, because nothing is held open."""


def _boot_id(roots: Roots) -> str:
    try:
        return read_boot_id(roots.proc)
    except OSError:
        return ""
