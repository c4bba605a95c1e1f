"""The port: what every vendor must offer.

`discover` is a pure read with injected roots, in a deterministic order. `fingerprint` is the cheap probe: while it
stays the same there is no need to discover again. The edit methods look at device nodes and files only, never at the
vendor's library: Prepare of a whole GPU makes no library call.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dra_driver.hardware.facts import Facts, GpuFacts, MigProfile, PartitionFacts
from dra_driver.model.edits import Edits
from dra_driver.model.sharing import ComputeMode, Interval, SharedDevice


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the node's trees are seen by this process, and where the container runtime sees the same files.

    `dev`, `sys`, `proc` replace /dev, /sys, /proc. `driver` is the NVIDIA driver root as the *host* names it;
    `driver_mount` is where this process sees that tree ("/" and "/" for a driver installed on the host).
    """

    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    driver: str = "/"
    driver_mount: str = "/"


class Hardware(Protocol):
    """One vendor's hardware on this node. All methods may be called from any thread and may raise HardwareError."""

    vendor: str  # "nvidia", "simulated"

    def is_present(self) -> bool:
        """Return whether a matching PCI function exists (sysfs only: no library, no driver needed)."""

    def discover(self) -> Facts:
        """Read everything. Never raises for one bad GPU: it is dropped and stands in `Facts.problems`."""

    def fingerprint(self) -> Hashable:
        """Return a cheap value that changes when `discover` would give something else (well below 10 ms)."""

    def common_edits(self) -> Edits:
        """Return what every container with one of these devices needs: control nodes, libraries, environment."""

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return what one device needs: its nodes, with major and minor from stat (or the driver's tables) now.

        Raises: HardwareError("hardware.node-missing", retry LATER) naming the node that is not there.
        """

    def edit_problems(self) -> tuple[str, ...]:
        """Say in plain words what the edits leave out and why (no hook binary, no libcuda …)."""

    def close(self) -> None:
        """Let go of the vendor's library and of every device node, so that the driver can be unloaded."""


@runtime_checkable
class ProcessLister(Protocol):
    """Optional ability: who is running on a GPU (asked before a device of a vanished claim changes hands)."""

    def processes(self, gpu: GpuFacts, partition: PartitionFacts | None) -> tuple[int, ...]:
        """List process ids on the device. Raises: HardwareError when the hardware can't tell."""


@runtime_checkable
class Partitionable(Protocol):
    """Optional ability: cut a GPU into partitions while it runs.

    `gpu` says which one by UUID and PCI address; its other facts are the vendor's own, so old or recorded ones do.
    Calls of one GPU wait for each other, those of different GPUs do not. Everything is idempotent by reading back, so
    a caller that was killed asks again. Every method may raise HardwareError with `hardware.gpu-lost`,
    `hardware.not-answering` (the deadline passed: the call may still be under way) or `hardware.no-library`.
    """

    def create_partition(self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float) -> PartitionFacts:
        """Return the partition of `profile` at `start`, made now unless it is there already.

        A GPU instance without compute instance at exactly that placement (a crash left it) is completed. Its
        capability nodes are there on return. MIG mode is left as it is.

        Raises: HardwareError("hardware.mig-off"), ("hardware.insufficient-resources", retry LATER: something
        overlaps), ("hardware.partition-in-use", the placement holds something else in use).
        """

    def destroy_partition(
        self, gpu: GpuFacts, uuid: str, deadline_s: float, *, placement: tuple[int, int] | None = None
    ) -> None:
        """Destroy the partition with a UUID: compute instance, then GPU instance. One that is gone is fine.

        A GPU instance that other compute instances use is left. What is in use is waited for until the deadline.

        `placement` (GPU instance profile id, first memory slice) says where ours stood or was being made: a GPU
        instance there that has no compute instance (a crash came between the two) is destroyed too; a finished
        partition there with another UUID never is. With uuid "" that is all that happens: the undo of a creation
        that left no UUID. What fails half-way with partition-in-use needs it as well.

        Raises: HardwareError("hardware.partition-in-use", retry LATER).
        """

    def set_mig_mode(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch MIG mode; nothing happens where it is so already. Minors of nodes may change.

        Raises: HardwareError("hardware.reset-needed", retry NEVER), ("hardware.gpu-in-use", retry LATER) and, when
        switching off with partitions left, ("hardware.partition-in-use", retry LATER).
        """

    def mig_mode(self, gpu: GpuFacts, deadline_s: float) -> bool:
        """Read anew whether MIG mode is on."""

    def partitions_now(self, gpu: GpuFacts) -> tuple[PartitionFacts, ...]:
        """Read the GPU's partitions anew; nothing while MIG mode is off."""

    def unusable_now(self, gpu: GpuFacts) -> tuple[tuple[int, int], ...]:
        """Read anew which GPU instances there are beside the partitions, as `GpuFacts.unusable` has them."""


@runtime_checkable
class MemoryLimiting(Protocol):
    """Optional ability, of the GPUs whose facts say `limits_memory`: the driver keeps a cgroup to a limit."""

    def limit_memory(self, device: SharedDevice, cgroup: str, limit: int | None, deadline_s: float) -> None:
        """Let the processes below a cgroup (its folder's path) have `limit` bytes of a GPU's memory at most.

        None takes the limit away. It goes with the cgroup, and holds for memory that is asked for from now on. A cgroup
        that is gone is fine.

        Raises: HardwareError("hardware.memory-limit-unsupported", retry NEVER), ("hardware.no-permission", retry
        NEVER), ("hardware.not-answering"), ("hardware.gpu-lost", retry LATER).
        """


@runtime_checkable
class Shareable(Protocol):
    """Optional ability: the settings of a device on which sharing rests.

    Both are of this boot only: a reboot, or a driver that is loaded anew, brings back the defaults. Every method may
    raise HardwareError, with `hardware.not-answering` when the deadline passed.
    """

    def compute_mode(self, device: SharedDevice, deadline_s: float) -> ComputeMode:
        """Read the compute mode of a GPU or a MIG device.

        Raises: HardwareError("hardware.compute-mode-unsupported", retry NEVER) where it has none.
        """

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode of a GPU or a MIG device.

        Raises: HardwareError("hardware.compute-mode-unsupported"), ("hardware.no-permission"), both retry NEVER.
        """

    def time_slice(self, device: SharedDevice, deadline_s: float) -> Interval | None:
        """Read how long the time slices of a GPU are; None where that can't be told."""

    def set_time_slice(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        """Set how long the time slices of a GPU are.

        Raises: HardwareError("hardware.time-slice-unsupported", retry NEVER) for a GPU without that setting.
        """
