"""Partitions on demand: a GPU that Prepare may partition, offered whole and as every placement.

A placement is published in the same way whether MIG mode is on or off and whichever partitions exist, so the devices of
a GPU's placements are computed once and kept until something other than its partitions changes. A node with eight GPUs
has 200 placements and each claim changes one of them: computing all of them again took 11 ms at every scan. The devices
with the facts as they are now are kept as well, so devices that did not change are the same objects in each inventory,
and quickly compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from dra_driver.base.names import is_dns_label
from dra_driver.hardware.facts import Facts, GpuFacts, Problem
from dra_driver.node.devices.describing import CommonFacts, Describer, Device, MigPlacement
from dra_driver.node.devices.offering import (
    GpuOffer,
    Inventory,
    Offering,
    channel_offer,
    with_counted_parts,
    with_passthrough_device,
)
from dra_driver.node.devices.partitions import (
    STATIC,
    CurrentGpu,
    MigPolicy,
    NamedPlacement,
    capacity_of_gpu,
    counter_set_name,
    counters_of_gpu,
    counters_of_placement,
    current_gpus,
    whole_is_offered,
)
from dra_driver.node.devices.rules import NOTHING_SHARED, SharingRules
from dra_driver.node.devices.sharing import SharingOffers

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


# Build: facts in, devices out.


def build_inventory(facts: Facts, policy: MigPolicy = STATIC, sharing: SharingRules = NOTHING_SHARED) -> Inventory:
    """Return the devices that these facts are published as, with every problem found on the way.

    Never raises for facts that can't be published: those become problems. The same arguments yield the same inventory.
    """
    describer = Describer(facts)
    current = current_gpus(facts.gpus, policy, describer)
    shares = SharingOffers(sharing, policy.ownership, describer, current)
    offers = []
    for gpu in current:
        offer = shares.offer(gpu)
        offer = with_placements(offer, gpu, describer)
        offer = with_counted_parts(offer, gpu)
        offers.append(with_passthrough_device(offer, gpu, policy.ownership.held, describer))
    if facts.channel is not None:
        offers.append(channel_offer(facts.channel, policy.ownership.forms))
    return _inventory(facts, GpuOffer.combined(offers), describer)


def _inventory(facts: Facts, offer: GpuOffer, describer: Describer) -> Inventory:
    """Return everything that a node offers, in the order of names, with the problems found on the way."""
    devices, plain = (_named(one, describer) for one in (offer.devices, offer.plain))
    offering = Offering(
        devices=devices,
        counter_sets=offer.counter_sets,
        plain=plain if offer.counter_sets else (),
        instead=dict(sorted(offer.instead.items())),
    )
    return Inventory(
        offering,
        problems=tuple(dict.fromkeys((*facts.problems, *describer.problems))),
        waiting_for=facts.waiting_for,
        hidden=_by_name({device.name: device for device in offer.hidden}),
        waits_for_claims=offer.waits_for_claims,
        driver_version=facts.driver_version,
    )


def _named(devices: Iterable[Device], describer: Describer) -> tuple[Device, ...]:
    """Return the devices in the order of their names, without those whose name is invalid or already taken."""
    named: dict[str, Device] = {}
    for device in devices:
        if not is_dns_label(device.name):
            describer.report("name-invalid", device, f"{device.name!r} is not a valid device name")
        elif device.name in named:
            describer.report("name-taken", device, f"another device is already named {device.name}")
        else:
            named[device.name] = device
    return _by_name(named)


def _by_name(devices: Mapping[str, Device]) -> tuple[Device, ...]:
    return tuple(devices[name] for name in sorted(devices))
