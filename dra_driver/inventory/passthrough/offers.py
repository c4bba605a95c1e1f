"""Passthrough: a whole GPU offered to containers and to virtual machines, of which only one gets it.

In: what containers are offered of a GPU that an administrator named. Out: the offer with the device for virtual
machines, and with what both consume of the GPU's counters. A scheduler that does not count is offered one of the two:
the one that a claim holds, else the one for virtual machines, because the administrator named the GPU for these. While
a virtual machine has the GPU, nothing else of it is offered: it is tested before containers get it again. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dra_driver.hardware.facts import GpuFacts, PassthroughFacts
from dra_driver.inventory.describing import Describer
from dra_driver.inventory.device import Device
from dra_driver.inventory.gpu_offer import GpuOffer
from dra_driver.inventory.mig.counters import counter_set_name
from dra_driver.inventory.mig.current_gpus import CurrentGpu

WHOLE = "gpu"  # the one counter of a GPU that is not partitioned on demand


def with_passthrough_device(
    offer: GpuOffer, current: CurrentGpu, held: Collection[str], describer: Describer
) -> GpuOffer:
    """Return the offer of a GPU with the device for virtual machines, if they may have the GPU.

    `held` are the names of the devices that claims hold. A physical function whose virtual functions are for virtual
    machines is not offered itself.
    """
    gpu, facts = current.gpu, current.gpu.passthrough
    if facts is not None and gpu.part_number is None:
        passed = describer.describe_passed(gpu.passed_name, gpu)
        is_passed = passed.name in held
        if not is_passed and facts.physical and _is_held(facts.physical_name, held):
            return replace(offer, hidden=(*offer.hidden, passed), waits_for_claims=True)
        if not is_passed and (why := _obstacle(offer, current)):
            message = f"GPU {gpu.pci_address} is not offered to virtual machines: {why}"
            describer.report("not-passed", passed, message)
        else:
            offer = _with_passed(offer, passed, facts, held)
    if current.has_passed_functions and (offer.devices or offer.plain):
        return _withheld(offer, gpu, held)
    return offer


def _obstacle(offer: GpuOffer, current: CurrentGpu) -> str:
    """Return why no virtual machine can have a GPU, or "" if one can."""
    if offer.is_shared:
        return "a rule of the sharing configuration shares it"
    if current.is_administrators or any(device.partition is not None for device in current.devices):
        return "it has partitions of an administrator"
    return ""


def _with_passed(offer: GpuOffer, passed: Device, facts: PassthroughFacts, held: Collection[str]) -> GpuOffer:
    """Return the offer with the device for virtual machines; the other devices of the GPU are hidden."""
    keeps_others = passed.name not in held and _is_held(passed.gpu.whole_name, held)
    chosen = _choose(offer, passed, is_alone=facts.is_only_passed or facts.is_away, keeps_others=keeps_others)
    offered = {device.name for device in chosen.devices}
    hidden = tuple(device for device in (passed, *offer.plain) if device.name not in offered)
    return replace(chosen, hidden=(*offer.hidden, *hidden))


def _withheld(offer: GpuOffer, gpu: GpuFacts, held: Collection[str]) -> GpuOffer:
    """Return an offer without devices, or the same offer while claims hold a part of the GPU."""
    if _is_held(gpu.whole_name, held):
        return replace(offer, waits_for_claims=True)
    hidden = (*offer.hidden, *offer.devices, *offer.plain)
    return replace(offer, devices=(), plain=(), instead={}, hidden=hidden)


def _choose(offer: GpuOffer, passed: Device, *, is_alone: bool, keeps_others: bool) -> GpuOffer:
    """Return the offer with the device for virtual machines.

    With `is_alone`, containers don't get the GPU. With `keeps_others`, containers have it until their claims end.
    """
    if is_alone or not (offer.devices or offer.plain):
        if keeps_others:
            return replace(offer, waits_for_claims=True)
        return replace(offer, devices=(passed,), plain=(passed,), counter_sets={})
    shared = counter_set_name(passed.gpu)
    every_counter = offer.counter_sets.get(shared) or {WHOLE: 1}
    every = (*offer.devices, passed)
    return replace(
        offer,
        devices=tuple(
            one if one.counter_set else replace(one, counter_set=shared, counters=every_counter) for one in every
        ),
        plain=offer.plain if keeps_others else (passed,),
        counter_sets={shared: every_counter},
        waits_for_claims=offer.waits_for_claims or keeps_others,
    )


def _is_held(whole: str, held: Collection[str]) -> bool:
    """Return whether a claim has the GPU of this name, or a part of it."""
    return any(name == whole or name.startswith(f"{whole}-") for name in held)
