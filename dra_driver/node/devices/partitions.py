"""Partitions: which MIG devices a GPU has now and which Prepare may create on it.

In: a GPU's facts, and whose its partitions are. Out: the existing and the possible partitions, by name. Pure.

A partition is ours if it was created for a claim and the ledger records it in this boot; every other one belongs to an
administrator. While a GPU has a partition of an administrator, Prepare creates none on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dra_driver.base.names import partition_name
from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts
from dra_driver.node.devices.describing import Describer, Device, MigPlacement

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


# Counters: what MIG placements consume of their GPU, so that a scheduler that counts never allocates two that
# overlap.

_COUNTERS = {
    "multiprocessors": "multiprocessors",
    "copy_engines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg_engines": "jpeg-engines",
    "ofa_engines": "ofa-engines",
    "memory_bytes": "memory",
}
_CAPACITIES = {
    "multiprocessors": "multiprocessors",
    "copy_engines": "copyEngines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg_engines": "jpegEngines",
    "ofa_engines": "ofaEngines",
    "memory_bytes": "memory",
}


def counter_set_name(gpu: GpuFacts) -> str:
    """Return the name of a GPU's counter set."""
    return f"{gpu.whole_name}-counter-set"


def counters_of_gpu(placements: Sequence[MigPlacement]) -> dict[str, int]:
    """Return everything that can be consumed of a GPU: as much of each engine as its largest profile has.

    Where no profile of the whole GPU is known, the largest number that partitions can have at the same time is used.
    """
    most = _largest if _are_complete(placements) else _most_at_once
    counters = {name: most(placements, field) for field, name in _COUNTERS.items()}
    return counters | {_slice(index): 1 for index in range(_slices_of(placements))}


def counters_of_placement(placement: MigPlacement) -> dict[str, int]:
    """Return what one placement consumes."""
    counters = {name: getattr(placement.profile, field) for field, name in _COUNTERS.items()}
    return counters | {_slice(index): 1 for index in placement.slices}


def capacity_of_gpu(placements: Sequence[MigPlacement]) -> dict[str, int]:
    """Return the capacities of a whole GPU that shares counters with its partitions: those of its largest profiles.

    The result is empty where no profile of the whole GPU is known, because the GPU then has more than the largest one.
    """
    return (
        {name: _largest(placements, field) for field, name in _CAPACITIES.items()} if _are_complete(placements) else {}
    )


def occupied(device_gpu: GpuFacts, counters: Mapping[str, int]) -> tuple[str, ...]:
    """Return the memory slices that a device with these counters takes; two devices that have one in common overlap."""
    return _slices_among(device_gpu.whole_name, tuple(counters))


@lru_cache(maxsize=512)  # claims get the same devices again and again
def _slices_among(gpu: str, counters: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{gpu}/{name}" for name in counters if name.startswith(_slice("")))


def _slices_of(placements: Sequence[MigPlacement]) -> int:
    return max(placement.slices.stop for placement in placements)


def _are_complete(placements: Sequence[MigPlacement]) -> bool:
    """Return whether a profile of the whole GPU is among the placements."""
    return any(placement.profile.size == _slices_of(placements) for placement in placements)


def _largest(placements: Sequence[MigPlacement], field: str) -> int:
    return max(int(getattr(placement.profile, field)) for placement in placements)


def _most_at_once(placements: Sequence[MigPlacement], field: str) -> int:
    """Return the most of an engine that partitions side by side can have, within each profile's `max_instances`."""
    best = [0]
    for end in range(1, _slices_of(placements) + 1):
        ending = [
            best[placement.start] + int(getattr(placement.profile, field))
            for placement in placements
            if placement.slices.stop == end
        ]
        best.append(max(best[-1], *ending, 0))
    profiles = {placement.profile.gi_profile_id: placement.profile for placement in placements}.values()
    return min(best[-1], sum(int(getattr(profile, field)) * profile.max_instances for profile in profiles))


def _slice(index: int | str) -> str:
    return f"memory-slice-{index}"


# Current GPUs: the devices that each GPU of a node consists of now, before it is decided how they are offered.


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


# Offer text: how a GPU is offered, in words for logs and for `dra-driver devices`.

ON_DEMAND = "partitioned on demand"


def offer_text(gpu: GpuFacts, policy: MigPolicy) -> str:
    """Return how a GPU is offered to a scheduler that counts; if it is not partitioned on demand, with the reason.

    >>> from dra_driver.hardware.facts import GpuFacts
    >>> offer_text(GpuFacts(uuid="GPU-1", pci_address="0000:65:00.0", minor=0, memory_bytes=1 << 30), MigPolicy(True))
    "whole: it can't be partitioned"
    """
    if is_dynamic(gpu, policy):
        return ON_DEMAND if whole_is_offered(gpu) else f"{ON_DEMAND}, not whole: only a reset could switch MIG mode off"
    form = "as its existing partitions" if gpu.mig_enabled else "whole"
    if not placements_of(gpu, with_all=policy.with_all):
        return f"{form}: it can't be partitioned"
    if not policy.is_dynamic:
        return f"{form}: --mig=static"
    if places := policy.ownership.foreign_placements(gpu):
        profiles = {profile.gi_profile_id: profile.name for profile in gpu.mig_profiles}
        names = {(p.gi_profile_id, p.start): p.profile for p in gpu.partitions}
        found = (f"{names.get(at) or profiles.get(at[0], 'an instance')} at slice {at[1]}" for at in places)
        return f"{form}: an administrator has partitioned it ({', '.join(found)})"
    return f"{form}: only a reset could switch MIG mode on"
