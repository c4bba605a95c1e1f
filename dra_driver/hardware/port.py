"""The port: what every vendor must implement, and what it may.

`Hardware` is what every vendor has. Everything else is an ability of its own, a protocol that a vendor may implement;
a caller asks for it by type (`isinstance`), never by the vendor's name. All names are imported from here; the modules
each have one kind of abilities.

For every ability: any thread may call any method. Deadlines and patience are in seconds from the call, sizes in bytes,
addresses are PCI addresses as sysfs writes them ("0000:65:00.0"). A method that changes something reads the state back
and is idempotent, so that a caller that was killed can repeat it. Errors are HardwareError, each with a code below
"hardware." and with whether a later call can succeed (`retry`).
Source: Kubernetes DRA plugin contract (KEP-4381), by which Prepare and Unprepare may be repeated at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from dra_driver.base.wire import ComputeMode, Interval, SharedDevice
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
    Problem,
)
from dra_driver.hardware.metered import MeterPlan, MeterReport


@runtime_checkable
class HealthReporter(Protocol):
    """Optional ability: report what can be observed about the health of the GPUs.

    The vendor's own thread makes the library calls; none of these methods waits for one longer than `patience_s`, and
    none holds up a call of another ability.
    """

    def watch_health(self, notify: Callable[[], None], *, log_position: int) -> None:
        """Begin to observe; calling it again replaces the earlier observation.

        Args:
            notify: called by any thread when there is something to report; it must return at once.
            log_position: the sequence number of the last kernel message that was reported earlier in this boot.
        """

    def health(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was observed since the last call.

        Args:
            is_urgent: whether to wait for readings that begin after this call, as is done after an Xid in any case.
            patience_s: how long to wait for these, in seconds; after that the report has the readings that there are.
        """

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return the state of GPUs on the PCI bus, by address, read now from files alone: this can't hang.

        `gpus` are PCI addresses; one that the bus does not show is reported as gone.
        """

    def end_health(self) -> None:
        """Stop observing. Idempotent."""


@runtime_checkable
class Metered(Protocol):
    """Optional ability: measure what the GPUs do.

    The vendor's own thread makes the library calls, the one that also observes health; no method waits for any.
    """

    def begin_metering(self, plan: MeterPlan) -> None:
        """Begin to measure, one round after the other; `plan` names the measures and the interval in seconds.

        Calling it again replaces the earlier plan.
        """

    def meter_report(self) -> MeterReport:
        """Return the newest reading of each GPU; while a call hangs, those are the readings from before it."""

    def end_metering(self) -> None:
        """Stop measuring. Idempotent."""


@runtime_checkable
class ProcessLister(Protocol):
    """Optional ability: list the processes on a GPU (asked before a vanished claim's device is handed out again)."""

    def processes(self, gpu: GpuFacts, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the ids of the processes on the device, in ascending order, as this process's pid namespace has them.

        `partition` is the MIG partition of `gpu` that is meant, None for the whole GPU.

        Raises: HardwareError when the hardware can't report them, which must not be taken for "none".
        """


@runtime_checkable
class ComputeTested(Protocol):
    """Optional ability: show in a process of its own that a device computes."""

    def compute_program(self, gpu: GpuFacts, partition: PartitionFacts | None, *, is_thorough: bool) -> ComputeProgram:
        """Return the program that tests a device. Nothing is started here, and only files are read.

        Args:
            gpu: the GPU.
            partition: the MIG partition of `gpu` that is tested, None for the whole GPU.
            is_thorough: whether the test covers all of the memory and the copies, which takes minutes.

        Nothing is raised for a missing library: the program reports it.
        """


# What every vendor implements: presence, discovery, the probe, and what containers need.


class Roots(NamedTuple):
    """Where this process sees the node's trees, and where the container runtime sees the same files.

    `dev`, `sys` and `proc` replace /dev, /sys and /proc. `driver` is the path of the NVIDIA driver root on the *host*;
    `driver_mount` is where this process sees that tree (both are "/" for a driver installed on the host). `host` is
    where it sees the host's own programs, which matter if the driver comes from a container. `gpudirect_storage` says
    whether containers get what GPUDirect Storage needs of these trees.
    """

    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    driver: str = "/"
    driver_mount: str = "/"
    host: str = "/"
    gpudirect_storage: bool = False


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The result of the cheap probe.

    `mig` holds, for each GPU by PCI address, a value that changes with its MIG mode and partitions; `mig_nodes` is one
    that changes with the device nodes of any partition; `rest` changes with everything else.
    """

    rest: Hashable
    mig: tuple[tuple[str, Hashable], ...] = ()
    mig_nodes: Hashable = None

    def others_differ(self, before: Fingerprint, addresses: Collection[str]) -> bool:
        """Return whether anything changed since `before` that a change of these GPUs' partitions does not explain."""
        others = [tuple(one for one in seen.mig if one[0] not in addresses) for seen in (self, before)]
        return self.rest != before.rest or others[0] != others[1]


class Hardware(Protocol):
    """One vendor's hardware on this node. Any thread may call any method, and every method may raise HardwareError."""

    vendor: str  # "nvidia", "simulated"

    def is_present(self) -> bool:
        """Return whether a matching PCI function exists (from sysfs only: this needs no library and no driver)."""

    def discover(self) -> Facts:
        """Read everything and return it.

        One bad GPU never makes it raise: that GPU is dropped and listed in `Facts.problems`.

        Raises: HardwareError where nothing at all can be read, such as ("hardware.driver-changed", retry LATER).
        """

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else.

        It is cheap: well below 10 ms for a node of eight GPUs, and bounded if a GPU hangs. It opens no library.
        """

    def common_edits(self) -> Edits:
        """Return what every container with one of these devices needs: control nodes, libraries, environment.

        The same files on the node give the same edits. What is missing is left out, and reported by `edit_problems`.
        """

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return the edits for one device: its nodes, with their current numbers from stat or the driver's tables.

        `partition` is the MIG partition of `gpu` that is meant, None for the whole GPU.

        Raises: HardwareError("hardware.node-missing", retry LATER), naming the node that does not exist.
        """

    def edit_problems(self) -> tuple[str, ...]:
        """Return, in plain words, what the edits leave out and why (no hook binary, no libcuda …)."""

    def close(self) -> None:
        """Release the vendor's library and every device node, so that the driver can be unloaded. Idempotent."""


# The ability to divide GPUs into partitions while they run.


@runtime_checkable
class Partitionable(Protocol):
    """Optional ability: divide a GPU into partitions while it runs.

    `gpu` identifies the GPU by UUID and PCI address; the vendor reads all its other facts itself, so old or recorded
    facts will do. Calls for one GPU wait for each other, those for different GPUs do not. Every method is idempotent
    because it reads the state back, so a caller that was killed can simply repeat the call. Every method may raise
    HardwareError with `hardware.gpu-lost`, `hardware.not-answering` (the deadline passed: the call may still be under
    way) or `hardware.no-library`.
    """

    def create_partition(
        self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float, *, switches_on: bool = False
    ) -> CreatedPartition:
        """Return the partition of `profile` at `start`, created now unless it exists already.

        `start` is the first memory slice. A GPU instance without a compute instance at exactly that placement, which a
        crash left, is completed. The partition's capability nodes exist on return. With `switches_on`, MIG mode is
        switched on first where it is off; otherwise it is left as it is.

        Raises: HardwareError("hardware.mig-off"), ("hardware.insufficient-resources", retry LATER: something overlaps),
        ("hardware.partition-in-use": the placement holds something else that is in use), and with `switches_on` those
        of `set_mig_mode`.
        """

    def placement_now(self, gpu: GpuFacts, profile: MigProfile, start: int) -> PlacementFacts:
        """Return what is at one placement, read from the hardware now. Other placements are not looked at.

        A GPU instance there that lacks its compute instance, or is divided into smaller ones, is no partition.
        """

    def destroy_partition(
        self,
        gpu: GpuFacts,
        uuid: str,
        deadline_s: float,
        *,
        placement: tuple[int, int] | None = None,
        switches_off: bool = False,
    ) -> bool:
        """Destroy the partition with a UUID: the compute instance, then the GPU instance.

        With `switches_off`, MIG mode is switched off after it if that is possible at once. Return whether that was
        asked for and the mode is off; `set_mig_mode` explains why it is not, or waits for what keeps it on.

        It is no error if the partition is gone already. A GPU instance that other compute instances use is kept. If
        something is in use, the call waits for it until the deadline.

        `placement` (GPU instance profile id, first memory slice) is where our partition existed or was being created: a
        GPU instance there that has no compute instance (after a crash between the two steps) is destroyed too; a
        finished partition there with another UUID never is. With uuid "" that is all that happens, which undoes a
        creation that left no UUID. Pass `placement` as well when repeating a call that failed half-way with
        partition-in-use.

        Raises: HardwareError("hardware.partition-in-use", retry LATER).
        """

    def set_mig_mode(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch MIG mode; nothing happens where it is in that state already. The minors of nodes may change.

        Raises: HardwareError("hardware.reset-needed", retry NEVER), ("hardware.gpu-in-use", retry LATER) and, when
        switching off with partitions left, ("hardware.partition-in-use", retry LATER).
        """

    def mig_mode(self, gpu: GpuFacts, deadline_s: float) -> bool:
        """Return whether MIG mode is on, read from the hardware now. A change that is only pending does not count."""

    def partitions_now(self, gpu: GpuFacts) -> tuple[PartitionFacts, ...]:
        """Return the GPU's partitions, read from the hardware now; there are none while MIG mode is off."""

    def unusable_now(self, gpu: GpuFacts) -> tuple[tuple[int, int], ...]:
        """Return the GPU instances beside the partitions, as in `GpuFacts.unusable`, read from the hardware now."""


# The abilities on which sharing depends: compute mode, time slices, limits of memory, compute units.


@runtime_checkable
class Shareable(Protocol):
    """Optional ability: read and change the settings of a device on which sharing depends.

    Both settings last for this boot only: a reboot, or a driver that is loaded again, restores the defaults. Every
    method may raise HardwareError, with `hardware.not-answering` when the deadline passed.
    """

    def compute_mode(self, device: SharedDevice, deadline_s: float) -> ComputeMode:
        """Return the compute mode of a GPU or a MIG device.

        Raises: HardwareError("hardware.compute-mode-unsupported", retry NEVER) where the device has none.
        """

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode of a GPU or a MIG device. Idempotent.

        Raises: HardwareError("hardware.compute-mode-unsupported"), ("hardware.no-permission"), both retry NEVER.
        """

    def time_slice(self, device: SharedDevice, deadline_s: float) -> Interval | None:
        """Return how long the time slices of a GPU are, or None where that is not known.

        Source: nvidia-smi, "Compute Policy".
        """

    def set_time_slice(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        """Set how long the time slices of a GPU are. Idempotent.

        Raises: HardwareError("hardware.time-slice-unsupported", retry NEVER) for a GPU without that setting.
        """


@runtime_checkable
class MemoryLimiting(Protocol):
    """Optional ability: limit a cgroup's GPU memory, on GPUs whose facts have `limits_memory`."""

    def limit_memory(self, device: SharedDevice, cgroup: str, limit: int | None, deadline_s: float) -> None:
        """Limit the processes below a cgroup (the path of its folder) to `limit` bytes of a GPU's memory.

        None removes the limit. The limit disappears with the cgroup, and applies to memory that is allocated from now
        on. It is no error if the cgroup is gone. Setting the same limit again is harmless.

        Raises: HardwareError("hardware.memory-limit-unsupported", retry NEVER), ("hardware.no-permission", retry
        NEVER), ("hardware.not-answering"), ("hardware.gpu-lost", retry LATER).
        """


@runtime_checkable
class MemoryLimitShowing(Protocol):
    """Optional ability: show the limits that `MemoryLimiting` set, where something else on the node may end them."""

    def memory_limit(self, device: SharedDevice, cgroup: str) -> int | None:
        """Return the limit of a cgroup in bytes, None where it has none or the cgroup is gone. Reads files alone.

        Raises: HardwareError("hardware.memory-limit-unsupported").
        """


@runtime_checkable
class ComputeUnitChoosing(Protocol):
    """Optional ability: keep a container's programs to some of a GPU's compute units. A program can ignore that."""

    def compute_unit_edits(self, units: Sequence[int]) -> Edits:
        """Return what keeps the programs of a container to these units (from 0) of its only GPU."""


# The abilities to give containers more than the edits of their devices: admin nodes, edits of a claim, a channel.


@runtime_checkable
class AdminNodes(Protocol):
    """Optional ability: give claims with admin access more than others get."""

    def admin_edits(self, gpu: GpuFacts) -> Edits:
        """Return what only claims with admin access get of a GPU, such as the nodes of its management engine.

        Raises: HardwareError("hardware.node-missing", retry LATER).
        """


@runtime_checkable
class ClaimWide(Protocol):
    """Optional ability: give containers what all devices of a claim need together, such as one list of them."""

    def claim_edits(self, gpus: Sequence[GpuFacts]) -> Edits:
        """Return what every container with a device of a claim gets, in addition to `common_edits`."""


@runtime_checkable
class ChannelOffering(Protocol):
    """Optional ability: hand out an IMEX channel, by which programs of several nodes reach each other's GPU memory."""

    def channel(self, facts: Facts) -> ChannelFacts | Problem | None:
        """Return the channel of a node with these GPUs, why it has none, or None where there is no fabric at all."""

    def channel_edits(self) -> Edits:
        """Return the edits for a container with the channel.

        Raises: HardwareError("hardware.no-channel", LATER), ("hardware.imex-not-ready", LATER).
        """

    def channel_state(self) -> str | None:
        """Return what the node's daemon reports about its domain, such as "READY"; None if there is no daemon."""


# The ability to reset GPUs.


@runtime_checkable
class Resettable(Protocol):
    """Optional ability: reset GPUs that no claim and no other process uses.

    Between `await_return` and the next discovery that follows `close`, calls of the other abilities wait, within their
    deadlines, for the library to be open again. `needs_privilege` is whether a reset takes the rights of root on the
    host.
    """

    needs_privilege: bool

    def await_return(self) -> None:
        """Make calls wait while the library is closed, because it will be opened again soon. Idempotent."""

    def is_closed(self) -> bool:
        """Return whether this process has no GPU open."""

    def open_by(self, gpu: GpuFacts) -> tuple[int, ...]:
        """Return the ids of the processes that have a GPU open, those of this agent included, as far as /proc shows."""

    def persistence(self, gpu: GpuFacts, deadline_s: float) -> bool | None:
        """Return whether a GPU is in persistence mode; None where that is not known. Raises: HardwareError."""

    def set_persistence(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch persistence mode. Idempotent. Raises: HardwareError."""

    def reset(self, gpus: Sequence[GpuFacts], deadline_s: float) -> None:
        """Reset GPUs together; no process may have any of them open. A reset that is repeated is another reset.

        Raises: HardwareError("hardware.reset-failed", retry LATER), ("hardware.nvidia-smi-missing", retry LATER).
        """
