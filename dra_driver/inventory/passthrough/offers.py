"""Passthrough: a whole GPU offered to containers and to virtual machines, of which only one gets it.

In: a GPU that an administrator named, and the devices that it is offered as otherwise. Out: the device for virtual
machines, and what both consume of the GPU's counters. A scheduler that does not count is offered one of the two: the
one that a claim holds, else the one for virtual machines, for which the GPU was named. While a virtual machine has the
GPU, nothing else of it is offered: it is tested before containers get it again. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import Device
from dra_driver.inventory.mig.partitions import counter_set_name
from dra_driver.model.names import gpu_name, vfio_name

WHOLE = "gpu"  # the one counter of a GPU that is not partitioned on demand


@dataclass(frozen=True, slots=True)
class PassedOffer:
    """What a GPU is offered as, by name, to a scheduler that counts and to one that does not; `counters` are its own.

    With `waits`, the offer changes once claims end.
    """

    devices: Mapping[str, Device]
    plain: Mapping[str, Device]
    counters: Mapping[str, int]
    waits: bool = False


def obstacle(standing: Collection[Device], *, is_shared: bool, is_foreign: bool) -> str:
    """Return why no virtual machine can have a GPU, or "" where one can."""
    if is_shared:
        return "a rule of the sharing configuration shares it"
    if is_foreign or any(device.partition is not None for device in standing):
        return "it has partitions of an administrator"
    return ""


def passed_offer(
    passed: Device,
    others: Mapping[str, Device],
    plain: Mapping[str, Device],
    held: Collection[str],
    counters: Mapping[str, int],
) -> PassedOffer:
    """Return what a GPU is offered as.

    Args:
        passed: the device for virtual machines.
        others: what containers are offered of the GPU by a scheduler that counts, by name.
        plain: what they are offered by one that does not.
        held: the names of the devices that claims hold.
        counters: the GPU's counters, if it is partitioned on demand.
    """
    facts, name = passed.gpu.passthrough, passed.name
    is_held_otherwise = any(of_gpu(one, passed.gpu) and one != name for one in held)
    is_only_passed = facts is not None and facts.is_only_passed
    if is_only_passed or (facts is not None and facts.is_away) or (not others and not plain):
        if is_held_otherwise and name not in held:  # until the containers' claims end
            return PassedOffer(others, plain, counters, waits=True)
        return PassedOffer({name: passed}, {name: passed}, {})
    all_of_it = dict(counters) or {WHOLE: 1}
    counted = {one.name: one if one.counter_set else _taking(one, all_of_it) for one in others.values()}
    devices = {**counted, name: _taking(passed, all_of_it)}
    if is_held_otherwise and name not in held:
        return PassedOffer(devices, plain, all_of_it, waits=True)
    return PassedOffer(devices, {name: passed}, all_of_it)


def claimed_physical(gpu: GpuFacts, held: Collection[str]) -> bool:
    """Return whether a claim has the physical function behind a virtual one that is offered to virtual machines."""
    physical = gpu.passthrough.physical if gpu.passthrough else ""
    return physical != "" and any(_is_of(name, physical) for name in held)


def divided_addresses(gpus: Iterable[GpuFacts]) -> frozenset[str]:
    """Return the physical functions whose virtual functions are for virtual machines: nobody gets them whole."""
    return frozenset(gpu.passthrough.physical for gpu in gpus if gpu.passthrough and gpu.passthrough.physical)


def _taking(device: Device, counters: Mapping[str, int]) -> Device:
    return replace(device, counter_set=counter_set_name(device.gpu), counters=counters)


def of_gpu(name: str, gpu: GpuFacts) -> bool:
    """Return whether a name is that of a GPU or of a part of it."""
    return _is_of(name, gpu.pci_address)


def _is_of(name: str, address: str) -> bool:
    whole = gpu_name(address)
    return name == whole or name.startswith(f"{whole}-")


def passed_name(gpu: GpuFacts) -> str:
    """Return the name of the device for virtual machines."""
    return vfio_name(gpu.pci_address)
