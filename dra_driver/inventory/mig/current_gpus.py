"""Current GPUs: the devices that each GPU of a node consists of now, before it is decided how they are offered.

A GPU in MIG mode is no device itself: its partitions are devices, and without partitions there is none. What a claim
holds stays a device, so a placement that a claim holds is one even while its partition does not exist. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.inventory.describing import Describer
from dra_driver.inventory.device import Device, MigPlacement
from dra_driver.inventory.mig.partitions import (
    MigPolicy,
    NamedPlacement,
    Ownership,
    existing_partitions,
    held_placements,
    placements_on_demand,
)


@dataclass(frozen=True, slots=True)
class CurrentGpu:
    """The GPU at one PCI address as it is now, and what claims and an administrator have made of it.

    `gpus` are its facts: its own, or if the hardware has divided it, those of its parts and of all parts together.
    `devices` are what it consists of. `placements` are those where Prepare may create a partition and those that claims
    hold; there are none if Prepare may not partition the GPU. With `is_administrators`, an administrator has
    partitioned it; with `has_passed_functions`, virtual machines may have its virtual functions.
    """

    gpus: tuple[GpuFacts, ...]
    devices: tuple[Device, ...]
    placements: tuple[NamedPlacement, ...] = ()
    is_administrators: bool = False
    has_passed_functions: bool = False

    @property
    def gpu(self) -> GpuFacts:
        """Return the facts of the whole GPU, or of its last part if only parts are known."""
        return next((gpu for gpu in self.gpus if gpu.part_number is None), self.gpus[-1])


def current_gpus(gpus: Iterable[GpuFacts], policy: MigPolicy, describer: Describer) -> tuple[CurrentGpu, ...]:
    """Return a node's GPUs as they are now; `describer` collects what can't be published of their devices."""
    gpus, current = tuple(gpus), dict[str, CurrentGpu]()
    physical = {gpu.passthrough.physical for gpu in gpus if gpu.passthrough}
    for gpu in gpus:
        held = held_placements(gpu, policy.ownership)
        is_administrators = bool(policy.ownership.foreign_placements(gpu))
        placements, existing = placements_on_demand(gpu, held, policy), existing_partitions(gpu, policy.ownership)
        before = current.get(gpu.pci_address)
        current[gpu.pci_address] = CurrentGpu(
            gpus=(*(before.gpus if before else ()), gpu),
            devices=(*(before.devices if before else ()), *_devices(gpu, existing, held, policy.ownership, describer)),
            placements=placements,
            is_administrators=is_administrators,
            has_passed_functions=gpu.pci_address in physical,
        )
    return tuple(current.values())


def _devices(
    gpu: GpuFacts,
    existing: Sequence[tuple[str, PartitionFacts]],
    held: Mapping[str, MigPlacement],
    ownership: Ownership,
    describer: Describer,
) -> Iterator[Device]:
    is_mode_administrators = gpu.mig_enabled and gpu.pci_address not in ownership.modes
    is_partitioned = bool(gpu.partitions or gpu.unusable or held) or is_mode_administrators
    if not is_partitioned or gpu.name in ownership.held:
        yield describer.describe(gpu.name, gpu)
    for name, partition in existing:
        yield describer.describe(name, gpu, partition, has_slices=True)
    names = {name for name, _ in existing}
    for name, placement in held.items():
        if name not in names:
            now = next((p for p in gpu.partitions if placement.is_at(p)), None)
            yield replace(
                describer.describe(name, gpu, placement.expected_partition), partition=now, placement=placement
            )
