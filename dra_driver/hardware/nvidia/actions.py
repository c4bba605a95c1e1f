"""What the hardware port asks and changes of one GPU: each ability, by the part that has it.

gpu_calls      calls about one GPU, who runs on it         partitioning   MIG mode and partitions
modes          compute mode, time slice, memory limits     resetting      resets, persistence mode
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dra_driver.hardware.facts import CreatedPartition, GpuFacts, MigProfile, PartitionFacts, PlacementFacts
from dra_driver.hardware.nvidia.discovery import Discovery
from dra_driver.hardware.nvidia.gpu_calls import GpuCalls
from dra_driver.hardware.nvidia.library_use import LibraryUse
from dra_driver.hardware.nvidia.partitioning import Partitioning
from dra_driver.hardware.port import Roots
from dra_driver.model.sharing import ComputeMode, Interval, SharedDevice

if TYPE_CHECKING:
    from dra_driver.hardware.nvidia.modes import Modes


class GpuActions:
    """The abilities of the port that concern single GPUs.

    Args:
        roots: where the node's trees are.
        use: the use of the library.
        discovery: finds out, without the library, whether a GPU was taken out.
        call_timeout_s: a library call in flight for longer makes its GPU "not answering" until it returns.
    """

    def __init__(self, roots: Roots, use: LibraryUse, discovery: Discovery, call_timeout_s: float) -> None:
        self._roots = roots
        self._overdue_s = call_timeout_s
        self._use = use
        self._returned = threading.Event()  # unset from `await_return` until the library was opened again
        self._returned.set()
        self._calls = GpuCalls(use, discovery, call_timeout_s, self._returned)
        self._partitioning = Partitioning(self._calls)

    # -- which processes use it (port.ProcessLister)

    def processes(self, gpu: GpuFacts, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the process ids on a device. Raises: HardwareError when the hardware can't report them."""
        return self._calls.processes(gpu, partition)

    # -- MIG on demand (port.Partitionable)

    def create_partition(
        self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float, *, switches_on: bool = False
    ) -> CreatedPartition:
        """Return the partition of `profile` at `start`, created now unless it exists already."""
        return self._partitioning.create(gpu, profile, start, deadline_s, switches_on=switches_on)

    def placement_now(self, gpu: GpuFacts, profile: MigProfile, start: int) -> PlacementFacts:
        """Return what is at one placement, read from the hardware now."""
        return self._partitioning.placement(gpu, profile, start, self._overdue_s)

    def destroy_partition(
        self,
        gpu: GpuFacts,
        uuid: str,
        deadline_s: float,
        *,
        placement: tuple[int, int] | None = None,
        switches_off: bool = False,
    ) -> bool:
        """Destroy the partition with a UUID, and an unfinished one at `placement`."""
        return self._partitioning.destroy(gpu, uuid, placement, deadline_s, switches_off=switches_off)

    def set_mig_mode(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch MIG mode."""
        self._partitioning.set_mode(gpu, deadline_s, enabled=enabled)

    def mig_mode(self, gpu: GpuFacts, deadline_s: float) -> bool:
        """Return whether MIG mode is on, read from the hardware now."""
        return self._partitioning.mode(gpu, deadline_s)

    def partitions_now(self, gpu: GpuFacts) -> tuple[PartitionFacts, ...]:
        """Return the GPU's partitions, read from the hardware now."""
        return self._partitioning.read(gpu, self._overdue_s).partitions

    def unusable_now(self, gpu: GpuFacts) -> tuple[tuple[int, int], ...]:
        """Return the GPU's other instances, read from the hardware now."""
        return self._partitioning.read(gpu, self._overdue_s).unusable

    # -- sharing (port.Shareable)

    def _modes(self) -> Modes:
        from dra_driver.hardware.nvidia.modes import Modes  # noqa: PLC0415 - only where devices are shared

        return Modes(self._roots, self._calls)

    def compute_mode(self, device: SharedDevice, deadline_s: float) -> ComputeMode:
        """Return the compute mode of a GPU or a MIG device."""
        return self._modes().compute_mode(device, deadline_s)

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode of a GPU or a MIG device."""
        self._modes().set_compute_mode(device, mode, deadline_s)

    def time_slice(self, device: SharedDevice, deadline_s: float) -> Interval | None:
        """Return how long a GPU's time slices are."""
        return self._modes().time_slice(device, deadline_s)

    def set_time_slice(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        """Set how long a GPU's time slices are."""
        self._modes().set_time_slice(device, interval, deadline_s)

    def limit_memory(self, device: SharedDevice, cgroup: str, limit: int | None, deadline_s: float) -> None:
        """Limit how much of a GPU's memory a cgroup gets (port.MemoryLimiting)."""
        self._modes().limit_memory(device, cgroup, limit, deadline_s)

    # -- resets (port.Resettable)

    def await_return(self) -> None:
        """Let calls about GPUs wait until the library, which is about to be closed, is open again."""
        self._returned.clear()

    def is_closed(self) -> bool:
        """Return whether this process has no GPU open."""
        return self._use.is_closed

    def open_by(self, gpu: GpuFacts) -> tuple[int, ...]:
        """Return the ids of the processes that have a GPU open."""
        from dra_driver.hardware.nvidia.resetting import processes_with  # noqa: PLC0415 - only where GPUs are reset

        return processes_with(self._roots, gpu)

    def persistence(self, gpu: GpuFacts, deadline_s: float) -> bool | None:
        """Return whether a GPU is in persistence mode; None where it reports none."""
        from dra_driver.hardware.nvidia.resetting import persistence  # noqa: PLC0415 - only where GPUs are reset

        return persistence(self._calls, gpu, deadline_s)

    def set_persistence(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch persistence mode."""
        from dra_driver.hardware.nvidia.resetting import set_persistence  # noqa: PLC0415 - only where GPUs are reset

        set_persistence(self._calls, gpu, deadline_s, enabled=enabled)

    def reset(self, gpus: Sequence[GpuFacts], deadline_s: float) -> None:
        """Reset GPUs together, by nvidia-smi below the driver root."""
        from dra_driver.hardware.nvidia.resetting import reset_gpus  # noqa: PLC0415 - only where GPUs are reset

        reset_gpus(self._roots, gpus, deadline_s)
