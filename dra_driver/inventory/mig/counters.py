"""Counters: what MIG placements consume of their GPU, so that a scheduler that counts never allocates two that overlap.

In: a GPU's placements. Out: the counters that the GPU has, and those that each placement consumes: its engines, its
memory, and the memory slices that it covers. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import MigPlacement

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
