"""Partitions on demand: a GPU that Prepare may partition, offered whole and as every placement.

A placement is published in the same way whether MIG mode is on or off and whichever partitions exist now, so placements
are described once for as long as nothing but the GPU's partitions changes. A node with eight GPUs has 200 of them, and
each claim changes one: to describe all of them again took 11 ms at every look at the hardware.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from dra_driver.hardware.facts import GpuFacts, Problem
from dra_driver.inventory.describing import CommonFacts, Describer
from dra_driver.inventory.device import Cut, Device
from dra_driver.inventory.gpu_offer import GpuOffer
from dra_driver.inventory.mig.counters import capacity_of_gpu, counter_set_name, counters_of_cut, counters_of_gpu
from dra_driver.inventory.mig.partitions import NamedCut, whole_is_offered
from dra_driver.inventory.mig.standing import StandingGpu

_GPUS_KEPT = 32


@dataclass(frozen=True, slots=True)
class _Placements:
    """A GPU's placements as devices, what its counter set holds, and what replaces capacities of the whole GPU."""

    counters: Mapping[str, int]
    capacity: Mapping[str, int]
    problems: tuple[Problem, ...]
    devices: tuple[tuple[Cut, Device], ...]

    def devices_of(self, gpu: GpuFacts) -> Iterator[Device]:
        """Yield the devices with the GPU's facts as they are now, and with the partitions that exist now."""
        now = {(partition.gi_profile_id, partition.start): partition for partition in reversed(gpu.partitions)}
        for cut, device in self.devices:
            yield replace(device, gpu=gpu, partition=now.get((cut.profile.gi_profile_id, cut.start)))


def with_placements(offer: GpuOffer, standing: StandingGpu, describer: Describer) -> GpuOffer:
    """Return the offer with every placement for a scheduler that counts, if Prepare may partition the GPU.

    A GPU that is shared as a whole is not partitioned on demand.
    """
    if offer.is_shared or not standing.cuts:
        return offer
    gpu, shared = standing.gpu, counter_set_name(standing.gpu)
    uncut = replace(gpu, mig_enabled=True, partitions=(), unusable=(), limits_memory=False)
    placements = _described(uncut, standing.cuts, describer.common)
    describer.problems += placements.problems
    devices = list(placements.devices_of(gpu))
    if whole_is_offered(gpu):
        whole = describer.describe(gpu.whole_name, gpu)
        capacity = {**whole.capacity, **placements.capacity}
        devices.append(replace(whole, capacity=capacity, counter_set=shared, counters=placements.counters))
    return replace(offer, devices=tuple(devices), counter_sets={shared: placements.counters})


@lru_cache(_GPUS_KEPT)
def _described(gpu: GpuFacts, named: tuple[NamedCut, ...], common: CommonFacts) -> _Placements:
    cuts = [cut for _, cut in named]
    counters, capacity, shared = counters_of_gpu(cuts), capacity_of_gpu(cuts), counter_set_name(gpu)
    taken = [counters_of_cut(cut) for cut in cuts]
    describer, devices = Describer(common), []
    for (name, cut), of_cut in zip(named, taken, strict=True):
        device = describer.describe(name, gpu, cut.partition_to_be)
        devices.append((cut, replace(device, partition=None, cut=cut, counter_set=shared, counters=of_cut)))
    return _Placements(counters, capacity, tuple(describer.problems), tuple(devices))
