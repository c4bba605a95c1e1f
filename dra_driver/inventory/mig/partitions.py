"""Partitions: which MIG devices a GPU is offered as, and what overlapping ones share.

In: a GPU's facts, and what is known of its partitions' owners. Out: the existing and the possible partitions, and the
GPU's counters. Pure. Every placement consumes what it takes of its GPU, the memory slices that it covers among it, so
that a scheduler which counts never hands out two that overlap.

Ours is a partition that a claim was given and that the ledger records in this boot; every other is an administrator's.
While a GPU carries one of those it is offered as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts
from dra_driver.inventory.device import Cut
from dra_driver.model.names import gpu_name, partition_name

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
    """What the ledger says. `places` are being made, or undone, at this moment: their UUID is not recorded yet.

    `held` names the devices that claims hold: they stay published whatever happens. `forms` says of those that are
    known for certain whether they are held in shares. `modes` are the GPUs, by PCI address, on which MIG mode was
    switched on for partitions of ours. `recorded` is where ours stand, are being made or undone: an unusable instance
    there is one of ours, half-made. `tenants` names, with each device that is held in shares, the namespace of a holder
    ("" where that is not known).
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
        """Return the GPU's partitions that are an administrator's."""
        return tuple(p for p in gpu.partitions if not self.owns(gpu, p))

    def foreign_places(self, gpu: GpuFacts) -> tuple[tuple[int, int], ...]:
        """Return where an administrator's instances stand: profile id and start, of usable ones first."""
        others = (place for place in gpu.unusable if (gpu.pci_address, *place) not in self.recorded)
        return (*((p.gi_profile_id, p.start) for p in self.foreign(gpu)), *others)


@dataclass(frozen=True, slots=True)
class MigPolicy:
    """How MIG is offered. `is_dynamic`: Prepare makes partitions; `with_all`: also what NVIDIA's driver leaves out."""

    is_dynamic: bool = False
    with_all: bool = False
    ownership: Ownership = Ownership()


STATIC = MigPolicy()


def cuts_of(gpu: GpuFacts, *, with_all: bool = False) -> tuple[Cut, ...]:
    """Return every placement that may be asked for, in order of profile and start."""
    return tuple(
        Cut(profile, start)
        for profile in gpu.mig_profiles
        if with_all or _is_usual(profile)
        for start in profile.starts
    )


def is_dynamic(gpu: GpuFacts, policy: MigPolicy) -> bool:
    """Return whether Prepare may cut this GPU.

    Not one with an administrator's partition. One whose MIG mode only a reset can change is cut while the mode is on.
    """
    if not policy.is_dynamic or not cuts_of(gpu, with_all=policy.with_all):
        return False
    return (gpu.mig_toggles_without_reset or gpu.mig_enabled) and not policy.ownership.foreign_places(gpu)


def whole_is_offered(gpu: GpuFacts) -> bool:
    """Return whether a GPU that Prepare may cut is offered whole too."""
    return gpu.mig_toggles_without_reset or not gpu.mig_enabled


def cut_name(gpu: GpuFacts, cut: Cut) -> str:
    """Name the device of a placement: the same as when the partition stands there for good."""
    return partition_name(gpu.pci_address, cut.profile.name, cut.profile.gi_profile_id, cut.start)


def partition_to_be(cut: Cut) -> PartitionFacts:
    """Describe the partition that a cut makes; it has no UUID and no instance ids."""
    engines = {name: getattr(cut.profile, name) for name in _ENGINES}
    return PartitionFacts(
        "", cut.profile.name, cut.profile.gi_profile_id, -1, -1, cut.start, cut.profile.size, **engines
    )


def cut_of_partition(partition: PartitionFacts) -> Cut:
    """Return the placement of an existing partition; where else it could be placed is not known."""
    engines = {name: getattr(partition, name) for name in _ENGINES}
    slices = int(partition.profile.partition("g.")[0]) if partition.profile.partition("g.")[0].isdigit() else 0
    profile = MigProfile(
        partition.profile, partition.gi_profile_id, slices, partition.size, (), max_instances=1, **engines
    )
    return Cut(profile, partition.start)


def counter_set_name(gpu: GpuFacts) -> str:
    """Name the counters of a GPU."""
    return f"{gpu_name(gpu.pci_address)}-counter-set"


def counters_of_gpu(cuts: Sequence[Cut]) -> dict[str, int]:
    """Return all that there is to consume of a GPU: of each engine as much as its largest profile has.

    Where no profile of the whole GPU is known, as much as its partitions can have at one time.
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

    Nothing where no profile of the whole GPU is known: the GPU has more than the largest that is.
    """
    return {name: _largest(cuts, field) for field, name in _CAPACITIES.items()} if _are_complete(cuts) else {}


def occupied(device_gpu: GpuFacts, counters: Mapping[str, int]) -> Iterator[str]:
    """Name the memory slices that a device with these counters takes: two claims that hold one overlap."""
    prefix = gpu_name(device_gpu.pci_address)
    return (f"{prefix}/{name}" for name in counters if name.startswith(_slice("")))


def _slices_of(cuts: Sequence[Cut]) -> int:
    return max(cut.slices.stop for cut in cuts)


def _are_complete(cuts: Sequence[Cut]) -> bool:
    """Return whether a profile of the whole GPU is among them."""
    return any(cut.profile.size == _slices_of(cuts) for cut in cuts)


def _largest(cuts: Sequence[Cut], field: str) -> int:
    return max(int(getattr(cut.profile, field)) for cut in cuts)


def _most_at_once(cuts: Sequence[Cut], field: str) -> int:
    """Return the most of an engine that partitions side by side can have, no profile more often than it may stand."""
    best = [0]
    for end in range(1, _slices_of(cuts) + 1):
        ending = [best[cut.start] + int(getattr(cut.profile, field)) for cut in cuts if cut.slices.stop == end]
        best.append(max(best[-1], *ending, 0))
    profiles = {cut.profile.gi_profile_id: cut.profile for cut in cuts}.values()
    return min(best[-1], sum(int(getattr(profile, field)) * profile.max_instances for profile in profiles))


def _slice(index: int | str) -> str:
    return f"memory-slice-{index}"


def _is_usual(profile: MigProfile) -> bool:
    """Leave out profiles for graphics, and those with other media engines than usual."""
    return any(profile.name.endswith(f"gb{extension}") for extension in _EXTENSIONS)
