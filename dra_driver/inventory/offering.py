"""Offering and Inventory: everything that a node has to offer, as one value from the hardware to the slices.

Pure values. An offering holds its devices in each form that an API server may need: a server whose feature gates are
off drops fields, and a device without these fields might be allocated twice. `for_server` chooses the form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from dra_driver.hardware.facts import Problem
from dra_driver.inventory.device import Device
from dra_driver.model.taints import DeviceTaints


@dataclass(frozen=True, slots=True)
class KeptFields:
    """Which fields of a slice the API server keeps; until it has answered, all are assumed to be kept."""

    counters: bool = True  # sharedCounters and consumesCounters (gate DRAPartitionableDevices)
    shares: bool = True  # allowMultipleAllocations (gate DRAConsumableCapacity)
    taints: bool = True  # taints (gate DRADeviceTaints)


ALL_KEPT = KeptFields()


@dataclass(frozen=True)
class Offering:
    """What a node offers, with the devices of each form in the order of their names.

    `counter_sets` are the counters that overlapping devices share, by the names of set and counter. `plain` is offered
    in place of `devices` to a scheduler that does not count; none of its devices overlap. `instead` maps the name of a
    device that may be allocated many times to its replacement for a scheduler without support for that: replicas, or
    the whole device. `taints` are those of the devices that have any, by device name.
    """

    devices: tuple[Device, ...] = ()
    counter_sets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    plain: tuple[Device, ...] = ()
    instead: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    taints: DeviceTaints = field(default_factory=dict)

    def every(self) -> Iterator[Device]:
        """Yield each device of each form; replacements come last."""
        for group in (self.devices, self.plain, *self.instead.values()):
            yield from group

    def without(self, names: Collection[str]) -> Offering:
        """Return the offering without the devices of these names, in every form."""
        return self.narrowed(lambda devices: tuple(d for d in devices if d.name not in names)) if names else self

    def for_server(self, keeps: KeptFields, *, in_use: Collection[str] = ()) -> Offering:
        """Return what is offered to a server that keeps these fields, so that no scheduler allocates anything twice.

        Without counters, devices that share them would overlap; without shares, a device could not be allocated many
        times. Then their replacements are offered. Without taints, a device with a blocking taint is left out unless it
        is `in_use`: if a device in use were left out, its counters would seem free and be allocated again.
        """
        offering = self if keeps.taints else replace(self.without(self.blocked().difference(in_use)), taints={})
        devices, counter_sets = offering.devices, offering.counter_sets
        if not keeps.counters and counter_sets:
            devices, counter_sets = offering.plain, {}
        if not keeps.shares:
            devices = tuple(one for d in devices for one in (offering.instead.get(d.name, ()) if d.policies else (d,)))
        names = {device.name for device in devices}
        taints = {name: taints for name, taints in offering.taints.items() if name in names}
        return Offering(devices, counter_sets, taints=taints)

    def blocked(self) -> frozenset[str]:
        """Return the names of the devices with a taint that keeps pods away."""
        return frozenset(name for name, taints in self.taints.items() if any(one.effect.is_blocking for one in taints))

    def narrowed(self, narrow: Callable[[Sequence[Device]], tuple[Device, ...]]) -> Offering:
        """Return the offering with each of its forms replaced by what `narrow` leaves of it."""
        instead = {name: narrow(forms) for name, forms in self.instead.items()}
        return replace(self, devices=narrow(self.devices), plain=narrow(self.plain), instead=instead)


NOTHING = Offering()


@dataclass(frozen=True)
class Inventory:
    """Everything that this node has to offer, and the problems that keep the rest from being offered.

    `hidden` are devices that are not offered but may appear in the allocation of a claim. `waits_for_claims` is true if
    some device will be offered in another form once claims release it. `waiting_for` is what keeps the hardware from
    answering at all, "" while it answers.
    """

    offering: Offering = NOTHING
    problems: tuple[Problem, ...] = ()
    waiting_for: str = ""
    hidden: tuple[Device, ...] = ()
    waits_for_claims: bool = False
    driver_version: str | None = field(default=None, compare=False)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices that are offered to a scheduler that counts and shares."""
        return self.offering.devices

    @cached_property
    def by_name(self) -> Mapping[str, Device]:
        """Return all devices that a claim may have been allocated, by name, each in the form that is offered first."""
        return MappingProxyType({name: forms[0] for name, forms in self._forms.items()})

    def find(self, name: str, share_id: str | None) -> Device | None:
        """Return a device of an allocation in the form in which it was allocated, or None if there is none.

        A device that may be allocated many times is allocated with a share ID, any other without one; a device that was
        allocated whole stays whole, whatever is offered now.
        """
        forms = self._forms.get(name, ())
        return next((form for form in forms if bool(form.policies) is bool(share_id)), forms[0] if forms else None)

    @cached_property
    def _forms(self) -> Mapping[str, tuple[Device, ...]]:
        found: dict[str, list[Device]] = {}
        for device in (*self.offering.every(), *self.hidden):
            found.setdefault(device.name, []).append(device)
        return {name: tuple(forms) for name, forms in found.items()}


class CurrentInventory(Protocol):
    """The holder of a node's newest inventory; any thread may read it."""

    @property
    def current(self) -> Inventory:
        """Return the newest inventory."""
