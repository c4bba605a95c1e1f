"""Partitions: which MIG devices a GPU has now and which Prepare may create on it.

In: a GPU's facts, and what is known about who owns its partitions. Out: the existing and the possible partitions, by
name. Pure.

A partition is ours if it was created for a claim and the ledger records it in this boot; every other one belongs to an
administrator. While a GPU has one of an administrator's partitions, it is offered as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts
from dra_driver.inventory.device import Cut
from dra_driver.model.names import partition_name

_EXTENSIONS = ("", "+me")  # what NVIDIA's driver publishes: the plain shapes, and those with media engines
_SHARES_AN_INSTANCE = re.compile(r"[0-9]+c\.")  # "1c.3g.40gb" is one of several compute instances of a GPU instance

Place = tuple[str, int, int]  # PCI address, GPU-instance profile id, first memory slice
NamedCut = tuple[str, Cut]  # a placement with the name of its device


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the ledger records about partitions.

    `held` names the devices that claims hold: they stay published whatever happens. `forms` says of those that are
    known for certain whether they are held in shares. `modes` are the GPUs, by PCI address, on which MIG mode was
    switched on for partitions of ours. `recorded` are the places of our partitions, including those that are being made
    or undone: an unusable instance in such a place is one of ours, half-made. `tenants` names, with each device that is
    held in shares, the namespace of a holder ("" if it is not known).
    """

    uuids: frozenset[str] = frozenset()
    places: frozenset[Place] = frozenset()
    held: frozenset[str] = frozenset()
    modes: frozenset[str] = frozenset()
    forms: frozenset[tuple[str, bool]] = frozenset()
    recorded: frozenset[Place] = frozenset()
    tenants: frozenset[tuple[str, str]] = frozenset()

    def owns(self, gpu: GpuFacts, partition: PartitionFacts) -> bool:
        """Return whether a partition is ours."""
        place = (gpu.pci_address, partition.gi_profile_id, partition.start)
        return partition.uuid in self.uuids or place in self.places

    def foreign(self, gpu: GpuFacts) -> tuple[PartitionFacts, ...]:
        """Return the GPU's partitions that belong to an administrator."""
        return tuple(p for p in gpu.partitions if not self.owns(gpu, p))

    def foreign_places(self, gpu: GpuFacts) -> tuple[tuple[int, int], ...]:
        """Return profile id and start of an administrator's instances on the GPU, usable ones first."""
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


def cuts_of(gpu: GpuFacts, *, with_all: bool = False) -> tuple[Cut, ...]:
    """Return every placement that may be requested, in order of profile and start."""
    return tuple(
        Cut(profile, start)
        for profile in gpu.mig_profiles
        if with_all or _is_usual(profile)
        for start in profile.starts
    )


def is_dynamic(gpu: GpuFacts, policy: MigPolicy) -> bool:
    """Return whether Prepare may partition this GPU.

    It may not if the GPU has an administrator's partition. If only a reset can change the GPU's MIG mode, Prepare may
    partition it while the mode is on.
    """
    if not policy.is_dynamic or not cuts_of(gpu, with_all=policy.with_all):
        return False
    return (gpu.mig_toggles_without_reset or gpu.mig_enabled) and not policy.ownership.foreign_places(gpu)


def held_cuts(gpu: GpuFacts, ownership: Ownership) -> dict[str, Cut]:
    """Return, by name, the placements of a GPU that claims hold, including those that are not usually offered."""
    own = f"{gpu.whole_name}-"
    if not any(name.startswith(own) for name in ownership.held):
        return {}
    return {name: cut for name, cut in _named_cuts(gpu, with_all=True) if name in ownership.held}


def cuts_on_demand(gpu: GpuFacts, held: Mapping[str, Cut], policy: MigPolicy) -> tuple[NamedCut, ...]:
    """Return the placements that Prepare may create and those that claims hold; none if it may not create any."""
    if not is_dynamic(gpu, policy):
        return ()
    cuts = _named_cuts(gpu, with_all=policy.with_all)
    usual = {name for name, _ in cuts}
    return (*cuts, *((name, cut) for name, cut in held.items() if name not in usual))


def existing_partitions(gpu: GpuFacts, ownership: Ownership) -> list[tuple[str, PartitionFacts]]:
    """Return the partitions of a GPU in MIG mode that this driver did not make, with their names.

    A partition that this driver made is either held by a claim or about to be destroyed.
    """
    existing = []
    for partition in gpu.partitions if gpu.mig_enabled else ():
        shares_an_instance = _SHARES_AN_INSTANCE.match(partition.profile)
        if not shares_an_instance and ownership.owns(gpu, partition):
            continue
        name = partition_name(gpu.pci_address, partition.profile, partition.gi_profile_id, partition.start)
        existing.append((f"{name}-{partition.ci_id}" if shares_an_instance else name, partition))
    return existing


def whole_is_offered(gpu: GpuFacts) -> bool:
    """Return whether a GPU that Prepare may partition is offered whole too."""
    return gpu.mig_toggles_without_reset or not gpu.mig_enabled


def cut_name(gpu: GpuFacts, cut: Cut) -> str:
    """Return the name of a placement's device, which is the same as that of a permanent partition in that place."""
    return partition_name(gpu.pci_address, cut.profile.name, cut.profile.gi_profile_id, cut.start)


def _named_cuts(gpu: GpuFacts, *, with_all: bool) -> tuple[NamedCut, ...]:
    return tuple((cut_name(gpu, cut), cut) for cut in cuts_of(gpu, with_all=with_all))


def _is_usual(profile: MigProfile) -> bool:
    """Return whether a profile is neither for graphics nor one with unusual media engines."""
    return any(profile.name.endswith(f"gb{extension}") for extension in _EXTENSIONS)
