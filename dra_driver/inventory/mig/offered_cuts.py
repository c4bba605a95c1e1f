"""Offered cuts: the placements of a GPU as devices, described once for as long as nothing but its partitions changes.

A placement is published alike whether MIG mode is on or off and whichever partitions exist now. A node with eight GPUs
has 200 placements, and each claim changes one: to describe all of them again took 11 ms at every look at the hardware.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from dra_driver.hardware.facts import Facts, GpuFacts, Problem
from dra_driver.hardware.published.rows import Found
from dra_driver.inventory.describing import describe
from dra_driver.inventory.device import Cut, Device
from dra_driver.inventory.mig import partitions
from dra_driver.inventory.vendors import rows_of

_GPUS_KEPT = 32


@dataclass(frozen=True, slots=True)
class OfferedCuts:
    """A GPU's placements as devices, what its counter set holds, and what replaces capacities of the whole GPU."""

    counter_set: str
    counters: Mapping[str, int]
    capacity: Mapping[str, int]
    problems: tuple[Problem, ...]
    devices: tuple[tuple[Cut, Device], ...]

    def devices_of(self, gpu: GpuFacts) -> Iterator[Device]:
        """Yield the devices with the GPU's facts as they are now, and with the partitions that exist now."""
        now = {(partition.gi_profile_id, partition.start): partition for partition in reversed(gpu.partitions)}
        for cut, device in self.devices:
            yield replace(device, gpu=gpu, partition=now.get((cut.profile.gi_profile_id, cut.start)))


def offered_cuts(facts: Facts, gpu: GpuFacts, cuts: tuple[Cut, ...]) -> OfferedCuts:
    """Return what a GPU of a node with these facts is offered as. The same arguments yield the same result."""
    uncut = replace(gpu, mig_enabled=True, partitions=(), unusable=(), limits_memory=False)
    return _described(facts.vendor, uncut, cuts, (facts.driver_version, facts.runtime_version))


@lru_cache(_GPUS_KEPT)
def _described(
    vendor: str, gpu: GpuFacts, cuts: tuple[Cut, ...], versions: tuple[str | None, str | None]
) -> OfferedCuts:
    rows, shared, problems, devices = rows_of(vendor), partitions.counter_set_name(gpu), list[Problem](), []
    for cut in cuts:
        found = Found(gpu, partitions.partition_to_be(cut), *versions)
        device = describe(rows, partitions.cut_name(gpu, cut), found, problems, has_slices=False)
        counters = partitions.counters_of_cut(cut)
        devices.append((cut, replace(device, partition=None, cut=cut, counter_set=shared, counters=counters)))
    counted, capacity = partitions.counters_of_gpu(cuts), partitions.capacity_of_gpu(cuts)
    return OfferedCuts(shared, counted, capacity, tuple(problems), tuple(devices))
