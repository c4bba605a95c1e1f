"""Partitions: which MIG devices a GPU is offered as, and what overlapping ones share.

In: a GPU's facts, and what is known about who owns its partitions. Out: the existing and the possible partitions, and
the GPU's counters. Pure. Every placement consumes counters of its GPU, among them the memory slices that it covers, so
that a scheduler that counts never hands out two that overlap.

A partition is ours if it was created for a claim and the ledger records it in this boot; every other one belongs to an
administrator. While a GPU has one of an administrator's partitions, it is offered as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts
from dra_driver.inventory.device import Cut
from dra_driver.model.names import partition_name

_EXTENSIONS = ("", "+me")  # what NVIDIA's driver publishes: the plain shapes, and those with media engines
_ENGINES = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines", "memory_bytes")
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

Place = tuple[str, int, int]  # PCI address, GPU-instance profile id, first memory slice


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


def whole_is_offered(gpu: GpuFacts) -> bool:
    """Return whether a GPU that Prepare may partition is offered whole too."""
    return gpu.mig_toggles_without_reset or not gpu.mig_enabled


def cut_name(gpu: GpuFacts, cut: Cut) -> str:
    """Return the name of a placement's device, which is the same as that of a permanent partition in that place."""
    return partition_name(gpu.pci_address, cut.profile.name, cut.profile.gi_profile_id, cut.start)


def partition_to_be(cut: Cut) -> PartitionFacts:
    """Return the facts of the partition that a cut would create; it has no UUID and no instance ids yet."""
    engines = {name: getattr(cut.profile, name) for name in _ENGINES}
    return PartitionFacts(
        "", cut.profile.name, cut.profile.gi_profile_id, -1, -1, cut.start, cut.profile.size, **engines
    )


def cut_of_partition(partition: PartitionFacts) -> Cut:
    """Return the placement of an existing partition; other possible starts of its profile are not known."""
    engines = {name: getattr(partition, name) for name in _ENGINES}
    slices = int(partition.profile.partition("g.")[0]) if partition.profile.partition("g.")[0].isdigit() else 0
    profile = MigProfile(
        partition.profile, partition.gi_profile_id, slices, partition.size, (), max_instances=1, **engines
    )
    return Cut(profile, partition.start)


def counter_set_name(gpu: GpuFacts) -> str:
    """Return the name of a GPU's counter set."""
    return f"{gpu.whole_name}-counter-set"


def counters_of_gpu(cuts: Sequence[Cut]) -> dict[str, int]:
    """Return everything that can be consumed of a GPU: as much of each engine as its largest profile has.

    Where no profile of the whole GPU is known, it is as much as partitions that exist at the same time can have.
    """
    most = _largest if _are_complete(cuts) else _most_at_once
    counters = {name: most(cuts, field) for field, name in _COUNTERS.items()}
    return counters | {_slice(index): 1 for index in range(_slices_of(cuts))}


def counters_of_cut(cut: Cut) -> dict[str, int]:
    """Return what one placement consumes."""
    counters = {name: getattr(cut.profile, field) for field, name in _COUNTERS.items()}
    return counters | {_slice(index): 1 for index in cut.slices}


def capacity_of_gpu(cuts: Sequence[Cut]) -> dict[str, int]:
    """Return the capacities of a whole GPU that shares counters with its partitions: those of its largest profiles.

    The result is empty where no profile of the whole GPU is known, because the GPU then has more than the largest one.
    """
    return {name: _largest(cuts, field) for field, name in _CAPACITIES.items()} if _are_complete(cuts) else {}


def occupied(device_gpu: GpuFacts, counters: Mapping[str, int]) -> Iterator[str]:
    """Yield the memory slices that a device with these counters takes; claims that have one in common overlap."""
    prefix = device_gpu.whole_name
    return (f"{prefix}/{name}" for name in counters if name.startswith(_slice("")))


def _slices_of(cuts: Sequence[Cut]) -> int:
    return max(cut.slices.stop for cut in cuts)


def _are_complete(cuts: Sequence[Cut]) -> bool:
    """Return whether a profile of the whole GPU is among the placements."""
    return any(cut.profile.size == _slices_of(cuts) for cut in cuts)


def _largest(cuts: Sequence[Cut], field: str) -> int:
    return max(int(getattr(cut.profile, field)) for cut in cuts)


def _most_at_once(cuts: Sequence[Cut], field: str) -> int:
    """Return the most of an engine that partitions side by side can have, within each profile's `max_instances`."""
    best = [0]
    for end in range(1, _slices_of(cuts) + 1):
        ending = [best[cut.start] + int(getattr(cut.profile, field)) for cut in cuts if cut.slices.stop == end]
        best.append(max(best[-1], *ending, 0))
    profiles = {cut.profile.gi_profile_id: cut.profile for cut in cuts}.values()
    return min(best[-1], sum(int(getattr(profile, field)) * profile.max_instances for profile in profiles))


def _slice(index: int | str) -> str:
    return f"memory-slice-{index}"


def _is_usual(profile: MigProfile) -> bool:
    """Return whether a profile is neither for graphics nor one with unusual media engines."""
    return any(profile.name.endswith(f"gb{extension}") for extension in _EXTENSIONS)
