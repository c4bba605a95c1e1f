"""Partitions on demand: a GPU that Prepare may partition, offered whole and as every placement.

A placement is published in the same way whether MIG mode is on or off and whichever partitions exist, so the devices of
a GPU's placements are computed once and kept until something other than its partitions changes. A node with eight GPUs
has 200 placements and each claim changes one of them: computing all of them again took 11 ms at every scan. The devices
with the facts as they are now are kept as well, so devices that did not change are the same objects in each inventory,
and quickly compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from dra_driver.hardware.facts import GpuFacts, Problem
from dra_driver.inventory.describing import CommonFacts, Describer
from dra_driver.inventory.device import Device, MigPlacement
from dra_driver.inventory.gpu_offer import GpuOffer
from dra_driver.inventory.mig.counters import capacity_of_gpu, counter_set_name, counters_of_gpu, counters_of_placement
from dra_driver.inventory.mig.current_gpus import CurrentGpu
from dra_driver.inventory.mig.partitions import NamedPlacement, whole_is_offered

_GPUS_KEPT = 32


@dataclass(frozen=True, slots=True)
class _Placements:
    """A GPU's placements as devices, the content of its counter set, and the new capacities of the whole GPU."""

    counters: Mapping[str, int]
    capacity: Mapping[str, int]
    problems: tuple[Problem, ...]
    devices: tuple[tuple[MigPlacement, Device], ...]

    def devices_of(self, gpu: GpuFacts) -> Iterator[Device]:
        """Yield the devices with the GPU's facts as they are now, and with the partitions that exist now."""
        now = {(partition.gi_profile_id, partition.start): partition for partition in reversed(gpu.partitions)}
        for placement, device in self.devices:
            yield replace(device, gpu=gpu, partition=now.get((placement.profile.gi_profile_id, placement.start)))


@dataclass(frozen=True, slots=True)
class _Devices:
    """A GPU as it is now, as devices: its placements and, if it is offered as a whole, itself."""

    devices: tuple[Device, ...]
    counters: Mapping[str, int]
    problems: tuple[Problem, ...]


def with_placements(offer: GpuOffer, current: CurrentGpu, describer: Describer) -> GpuOffer:
    """Return the offer with a device for every placement, for schedulers that count, if Prepare may partition the GPU.

    A GPU that is shared as a whole is not partitioned on demand.
    """
    if offer.is_shared or not current.placements:
        return offer
    now = _devices_now(current.gpu, current.placements, describer.common)
    describer.problems += now.problems
    return replace(offer, devices=now.devices, counter_sets={counter_set_name(current.gpu): now.counters})


@lru_cache(_GPUS_KEPT)  # of eight GPUs, a scan after a claim finds one changed
def _devices_now(gpu: GpuFacts, named: tuple[NamedPlacement, ...], common: CommonFacts) -> _Devices:
    unpartitioned = replace(gpu, mig_enabled=True, partitions=(), unusable=(), limits_memory=False)
    placements, describer = _described(unpartitioned, named, common), Describer(common)
    devices = list(placements.devices_of(gpu))
    if whole_is_offered(gpu):
        whole = describer.describe(gpu.whole_name, gpu)
        capacity, shared = {**whole.capacity, **placements.capacity}, counter_set_name(gpu)
        devices.append(replace(whole, capacity=capacity, counter_set=shared, counters=placements.counters))
    return _Devices(tuple(devices), placements.counters, (*placements.problems, *describer.problems))


@lru_cache(_GPUS_KEPT)
def _described(gpu: GpuFacts, named: tuple[NamedPlacement, ...], common: CommonFacts) -> _Placements:
    placements = [placement for _, placement in named]
    counters, capacity, shared = counters_of_gpu(placements), capacity_of_gpu(placements), counter_set_name(gpu)
    taken = [counters_of_placement(placement) for placement in placements]
    describer, devices = Describer(common), []
    for (name, placement), of_placement in zip(named, taken, strict=True):
        device = describer.describe(name, gpu, placement.expected_partition)
        devices.append(
            (placement, replace(device, partition=None, placement=placement, counter_set=shared, counters=of_placement))
        )
    return _Placements(counters, capacity, tuple(describer.problems), tuple(devices))
