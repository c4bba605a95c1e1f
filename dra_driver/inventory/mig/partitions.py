"""Partitions: which MIG devices a GPU has now and which Prepare may create on it.

In: a GPU's facts, and whose its partitions are. Out: the existing and the possible partitions, by name. Pure.

A partition is ours if it was created for a claim and the ledger records it in this boot; every other one belongs to an
administrator. While a GPU has a partition of an administrator, Prepare creates none on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts
from dra_driver.inventory.device import MigPlacement
from dra_driver.model.names import partition_name

_EXTENSIONS = ("", "+me")  # what NVIDIA's driver publishes: the plain shapes, and those with media engines
_SHARES_AN_INSTANCE = re.compile(r"[0-9]+c\.")  # "1c.3g.40gb" is one of the compute instances of a GPU instance

PlacementKey = tuple[str, int, int]  # PCI address, GPU-instance profile id, first memory slice
NamedPlacement = tuple[str, MigPlacement]  # a placement with the name of its device


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the ledger records about partitions.

    `uuids` and `placements` are those of our finished partitions. `held` are the names of the devices that claims hold:
    these stay published whatever happens. `forms` has the names of those that are known for certain, each with whether
    it is held in shares. `modes` are the GPUs, by PCI address, on which MIG mode was switched on for partitions of
    ours. `recorded` are the placements of all our partitions, including those that are being created or destroyed: an
    unusable instance in such a place is an unfinished one of ours. `tenants` has the names of the devices that are held
    in shares, each with the namespace of a holder ("" if it is not known).
    """

    uuids: frozenset[str] = frozenset()
    placements: frozenset[PlacementKey] = frozenset()
    held: frozenset[str] = frozenset()
    modes: frozenset[str] = frozenset()
    forms: frozenset[tuple[str, bool]] = frozenset()
    recorded: frozenset[PlacementKey] = frozenset()
    tenants: frozenset[tuple[str, str]] = frozenset()

    def owns(self, gpu: GpuFacts, partition: PartitionFacts) -> bool:
        """Return whether a partition is ours."""
        place = (gpu.pci_address, partition.gi_profile_id, partition.start)
        return partition.uuid in self.uuids or place in self.placements

    def foreign(self, gpu: GpuFacts) -> tuple[PartitionFacts, ...]:
        """Return the GPU's partitions that belong to an administrator."""
        return tuple(p for p in gpu.partitions if not self.owns(gpu, p))

    def foreign_placements(self, gpu: GpuFacts) -> tuple[tuple[int, int], ...]:
        """Return the profile id and start of each instance of an administrator on the GPU, usable ones first."""
        others = (place for place in gpu.unusable if (gpu.pci_address, *place) not in self.recorded)
        return (*((p.gi_profile_id, p.start) for p in self.foreign(gpu)), *others)


@dataclass(frozen=True, slots=True)
class MigPolicy:
    """How MIG is offered.

    With `is_dynamic`, Prepare creates partitions; with `with_all`, profiles that NVIDIA's driver leaves out are offered
    too.
    """

    is_dynamic: bool = False
    with_all: bool = False
    ownership: Ownership = Ownership()


STATIC = MigPolicy()


def placements_of(gpu: GpuFacts, *, with_all: bool = False) -> tuple[MigPlacement, ...]:
    """Return every placement that may be requested, in order of profile and start."""
    return tuple(
        MigPlacement(profile, start)
        for profile in gpu.mig_profiles
        if with_all or _is_usual(profile)
        for start in profile.starts
    )


def is_dynamic(gpu: GpuFacts, policy: MigPolicy) -> bool:
    """Return whether Prepare may partition this GPU.

    It may not while the GPU has a partition of an administrator. A GPU whose MIG mode only a reset can change may be
    partitioned while the mode is on.
    """
    if not policy.is_dynamic or not placements_of(gpu, with_all=policy.with_all):
        return False
    return (gpu.mig_toggles_without_reset or gpu.mig_enabled) and not policy.ownership.foreign_placements(gpu)


def held_placements(gpu: GpuFacts, ownership: Ownership) -> dict[str, MigPlacement]:
    """Return, by name, the placements of a GPU that claims hold, including those that are not usually offered."""
    own = f"{gpu.whole_name}-"
    if not any(name.startswith(own) for name in ownership.held):
        return {}
    return {name: placement for name, placement in _named_placements(gpu, with_all=True) if name in ownership.held}


def placements_on_demand(
    gpu: GpuFacts, held: Mapping[str, MigPlacement], policy: MigPolicy
) -> tuple[NamedPlacement, ...]:
    """Return the placements where Prepare may create a partition, and those that claims hold; none if it may not."""
    if not is_dynamic(gpu, policy):
        return ()
    placements = _named_placements(gpu, with_all=policy.with_all)
    usual = {name for name, _ in placements}
    return (*placements, *((name, placement) for name, placement in held.items() if name not in usual))


def existing_partitions(gpu: GpuFacts, ownership: Ownership) -> list[tuple[str, PartitionFacts]]:
    """Return the partitions of a GPU in MIG mode that this driver did not create, with their names.

    A partition that this driver created is either held by a claim or about to be destroyed.
    """
    existing = []
    for partition in gpu.partitions if gpu.mig_enabled else ():
        shares_an_instance = _SHARES_AN_INSTANCE.match(partition.profile)
        if not shares_an_instance and ownership.owns(gpu, partition):
            continue
        name = _name_at(gpu, partition.profile, partition.gi_profile_id, partition.start)
        existing.append((f"{name}-{partition.ci_id}" if shares_an_instance else name, partition))
    return existing


def whole_is_offered(gpu: GpuFacts) -> bool:
    """Return whether a GPU that Prepare may partition is offered whole too."""
    return gpu.mig_toggles_without_reset or not gpu.mig_enabled


def placement_name(gpu: GpuFacts, placement: MigPlacement) -> str:
    """Return the name of a placement's device, which is also the name of a permanent partition at that placement."""
    return _name_at(gpu, placement.profile.name, placement.profile.gi_profile_id, placement.start)


def _name_at(gpu: GpuFacts, profile: str, gi_profile_id: int, start: int) -> str:
    return partition_name(gpu.pci_address, profile, gi_profile_id, start)


def _named_placements(gpu: GpuFacts, *, with_all: bool) -> tuple[NamedPlacement, ...]:
    return tuple((placement_name(gpu, placement), placement) for placement in placements_of(gpu, with_all=with_all))


def _is_usual(profile: MigProfile) -> bool:
    """Return whether a profile is neither for graphics nor one with unusual media engines."""
    return any(profile.name.endswith(f"gb{extension}") for extension in _EXTENSIONS)
