"""Charges: how much each device of a claim counts, in hours of devices and of GPUs.

In: an allocation as the ledger records it, the inventory. Out: for each device its key, its weight (1 for a device that
a claim has alone, for a share its part of the device) and its part of a GPU. The weights of all shares of a device add
up to at most 1, so hours of shares add up to the hours of their device. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dra_driver.claims.allocated.records import devices_of_record
from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import Device
from dra_driver.inventory.offering import Inventory
from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError
from dra_driver.model.records import json_text
from dra_driver.model.wire import Wire

WHOLE = "gpu"  # the profile of a device that is not a partition


class UsageKey(NamedTuple):
    """The key under which hours are added up."""

    namespace: str
    device_class: str
    model: str
    profile: str


def usage_key(key: tuple[str, ...]) -> UsageKey:
    """Return the key of a total of claims without what it is a total of."""
    return UsageKey(*key[1:])


class Charge(NamedTuple):
    """How much one device of a claim counts. A device that the inventory lacks is unknown, and counts as a whole."""

    key: UsageKey
    device: str
    share_id: str
    weight: float = 1.0
    gpu_part: float = 1.0
    is_known: bool = False


def charges_of(namespace: str, allocation: Wire, inventory: Inventory) -> Iterator[Charge]:
    """Yield the charge of each device that a claim has; devices with admin access are not charged."""
    for held in devices_of_record(allocation):
        if held.is_admin:
            continue
        name, share_id, device_class = held.device, held.share_id or "", held.device_class
        device = inventory.find(name, share_id)
        if device is None:
            yield Charge(UsageKey(namespace, device_class, "", ""), name, share_id)
            continue
        weight = _weight(device, dict(held.consumed), inventory)
        key = UsageKey(namespace, device_class, device.gpu.product_name or "", _profile(device))
        yield Charge(key, name, share_id, weight, weight * _gpu_part(device, inventory), is_known=True)


def text_of_charges(charges: Iterable[Charge]) -> str:
    """Return charges as they are recorded; the namespace is that of the claim."""
    return json_text([[*one.key[1:], *one[1:]] for one in charges])


def charges_of_text(namespace: str, text: str) -> tuple[Charge, ...]:
    """Return charges that were recorded; fields that a newer agent added are ignored."""
    return tuple(
        Charge(UsageKey(namespace, device_class, model, profile), *more[: len(Charge._fields) - 1])
        for device_class, model, profile, *more in json.loads(text)
    )


def _profile(device: Device) -> str:
    profile = device.gpu.part.rpartition("-")[0] if device.gpu.part_number is not None else WHOLE
    if device.partition is not None:
        profile = device.partition.profile
    elif device.placement is not None:
        profile = device.placement.profile.name
    return f"{profile}-share" if device.share is not None else profile


def _weight(device: Device, consumed: Mapping[str, Any], inventory: Inventory) -> float:
    """Return the part of its device that a share takes: the largest of its parts of the device's capacities."""
    if device.share is None:
        return 1.0
    if device.share.index is not None:
        siblings = {
            one.name for one in inventory.by_name.values() if one.share and one.share.parent == device.share.parent
        }
        return 1.0 / max(1, len(siblings - {device.share.parent}))
    parts = [_part(amount, device.capacity.get(name.rpartition("/")[2], 0)) for name, amount in consumed.items()]
    return min(1.0, max(parts, default=1.0)) or 1.0


def _part(amount: Any, capacity: int) -> float:
    try:
        return float(Quantity.parse(str(amount)).value) / capacity if capacity else 0.0
    except QuantityError:
        return 0.0


def _gpu_part(device: Device, inventory: Inventory) -> float:
    """Return the part of its GPU that a device takes: the larger of its parts of memory slices and compute slices.

    The parts of a GPU that the hardware itself divides are equal.
    """
    if device.gpu.part_number is not None:
        address = device.gpu.pci_address
        siblings = {one.gpu.part_number for one in inventory.by_name.values() if one.gpu.pci_address == address}
        return 1.0 / max(1, len(siblings - {None}))
    if device.placement is not None:
        return _of_slices(device.gpu, device.placement.profile.gi_profile_id, device.placement.profile.memory_bytes)
    if device.partition is not None:
        return _of_slices(device.gpu, device.partition.gi_profile_id, device.partition.memory_bytes)
    return 1.0


def _of_slices(gpu: GpuFacts, profile_id: int, memory_bytes: int) -> float:
    profile = next((one for one in gpu.mig_profiles if one.gi_profile_id == profile_id), None)
    if profile is None:
        return min(1.0, memory_bytes / gpu.memory_bytes) if gpu.memory_bytes else 1.0
    memory = profile.size / max(one.size for one in gpu.mig_profiles)
    return max(memory, profile.slices / max(one.slices for one in gpu.mig_profiles))
