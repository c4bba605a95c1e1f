"""Counters: what MIG placements consume of their GPU, so that a scheduler that counts hands out no two that overlap.

In: a GPU's placements. Out: the counters that the GPU has, and those that each placement consumes: its engines, its
memory, and the memory slices that it covers. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import Cut

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
