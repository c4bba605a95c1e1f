"""Standing GPUs: what each GPU of a node consists of now, before anything is decided about how it is offered.

A GPU in MIG mode is not a device as a whole: its partitions are, and a GPU in MIG mode without partitions is none. What
claims hold stays a device: a partition of ours in a place that the ledger records is one even before it exists. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.inventory.describing import Describer
from dra_driver.inventory.device import Cut, Device
from dra_driver.inventory.mig.partitions import (
    MigPolicy,
    NamedCut,
    Ownership,
    cuts_on_demand,
    existing_partitions,
    held_cuts,
)


@dataclass(frozen=True, slots=True)
class StandingGpu:
    """The GPU at one PCI address as it is now, and what claims and an administrator have made of it.

    `gpus` are its facts: those of its parts and of all of them together where the hardware has divided it, else its own
    alone. `devices` are what it consists of. `cuts` are the placements that Prepare may create and those that claims
    hold; there are none if Prepare may not partition it. With `is_administrators`, an administrator has partitioned it;
    with `has_passed_functions`, virtual machines may have its virtual functions.
    """

    gpus: tuple[GpuFacts, ...]
    devices: tuple[Device, ...]
    cuts: tuple[NamedCut, ...] = ()
    is_administrators: bool = False
    has_passed_functions: bool = False

    @property
    def gpu(self) -> GpuFacts:
        """Return the facts of the whole GPU; those of a part where only parts are known."""
        return next((gpu for gpu in self.gpus if gpu.part_number is None), self.gpus[-1])


def standing_gpus(gpus: Iterable[GpuFacts], policy: MigPolicy, describer: Describer) -> tuple[StandingGpu, ...]:
    """Return a node's GPUs as they are now; `describer` collects what of their devices can't be published."""
    gpus, standing = tuple(gpus), dict[str, StandingGpu]()
    physical = {gpu.passthrough.physical for gpu in gpus if gpu.passthrough}
    for gpu in gpus:
        held = held_cuts(gpu, policy.ownership)
        is_administrators = bool(policy.ownership.foreign_places(gpu))
        cuts, existing = cuts_on_demand(gpu, held, policy), existing_partitions(gpu, policy.ownership)
        before = standing.get(gpu.pci_address)
        standing[gpu.pci_address] = StandingGpu(
            gpus=(*(before.gpus if before else ()), gpu),
            devices=(*(before.devices if before else ()), *_devices(gpu, existing, held, policy.ownership, describer)),
            cuts=cuts,
            is_administrators=is_administrators,
            has_passed_functions=gpu.pci_address in physical,
        )
    return tuple(standing.values())


def _devices(
    gpu: GpuFacts,
    existing: Sequence[tuple[str, PartitionFacts]],
    held: Mapping[str, Cut],
    ownership: Ownership,
    describer: Describer,
) -> Iterator[Device]:
    is_mode_administrators = gpu.mig_enabled and gpu.pci_address not in ownership.modes
    is_cut = bool(gpu.partitions or gpu.unusable or held) or is_mode_administrators
    if not is_cut or gpu.name in ownership.held:
        yield describer.describe(gpu.name, gpu)
    for name, partition in existing:
        yield describer.describe(name, gpu, partition, has_slices=True)
    names = {name for name, _ in existing}
    for name, cut in held.items():
        if name not in names:
            now = next((p for p in gpu.partitions if cut.is_at(p)), None)
            yield replace(describer.describe(name, gpu, cut.partition_to_be), partition=now, cut=cut)
