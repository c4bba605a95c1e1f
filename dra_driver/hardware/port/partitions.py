"""The ability to divide GPUs into partitions while they run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dra_driver.hardware.facts import CreatedPartition, GpuFacts, MigProfile, PartitionFacts, PlacementFacts


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
