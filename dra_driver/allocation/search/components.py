"""Components of a search: devices that share counters, described so that equal ones can be told apart from others.

In: the devices that a search may take, and what each alternative could ever take of them. Out: the component of each
device. Devices are equal if selectors, taints, needs, constrained attributes and counters see no difference;
components are equal if their devices are equal one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence

from dra_driver.allocation.pools.capacity import Amount
from dra_driver.allocation.pools.devices import DeviceRecord, PoolId
from dra_driver.allocation.requests import Alternative
from dra_driver.allocation.search.attempt import Attempt


class Component:
    """Devices that share counter sets, or one device without counters. `signatures` distinguishes its devices."""

    __slots__ = ("account", "counter_amounts", "counters", "members", "sets", "signatures", "template")

    def __init__(self, members: list[int]) -> None:
        self.members = members
        self.signatures: dict[int, Hashable] = {}
        self.counter_amounts: dict[int, tuple[tuple[int, Amount], ...]] = {}  # by counter, as numbered in `counters`
        self.account: Hashable = None
        self.counters: list[tuple[str, str]] = []
        self.sets: list[tuple[PoolId, str]] = []  # counter sets for which compatibility groups count
        self.template: Hashable = None


def find_components(
    devices: Sequence[DeviceRecord], attempt: Attempt, candidates: Mapping[Alternative, Sequence[int]]
) -> list[Component]:
    """Return the component of each device.

    Args:
        devices: those that the search may take.
        attempt: what is known of them before the search has placed any.
        candidates: for each alternative, the numbers of the devices that it could ever take, in ascending order.
    """
    return _Grouping(devices, attempt, candidates).components()


class _Grouping:
    """The devices of one search while they are grouped by the counter sets that they name."""

    def __init__(
        self, devices: Sequence[DeviceRecord], attempt: Attempt, candidates: Mapping[Alternative, Sequence[int]]
    ) -> None:
        self._devices, self._attempt, self._candidates = devices, attempt, candidates

    def components(self) -> list[Component]:
        """Return the component of each device."""
        found: dict[int, Component] = {}
        groups = self._groups()
        for group in groups:
            if id(group) not in found:
                found[id(group)] = self._describe(Component(sorted(group)))
        return [found[id(group)] for group in groups]

    def _groups(self) -> list[list[int]]:
        """Return the group of each device, which are the devices that share counter sets with it."""
        by_set: dict[Hashable, list[int]] = {}
        group_of: dict[int, list[int]] = {}
        for number, device in enumerate(self._devices):
            group = group_of[number] = [number]
            if not device.wire.get("consumesCounters"):
                continue
            key = self._attempt.known.facts(device).key
            for name in {name for name, _ in device.counter_amounts}:
                other = by_set.get((key, name))
                if other is not None:
                    root = group_of[other[0]]
                    if root is not group:
                        root += group
                        for member in group:
                            group_of[member] = root
                        group = root
                by_set[key, name] = [number]
        return [group_of[number] for number in range(len(self._devices))]

    def _describe(self, component: Component) -> Component:
        local: dict[tuple[str, str], int] = {}
        sets: dict[tuple[PoolId, str], int] = {}
        for number in component.members:
            device = self._devices[number]
            facts = self._attempt.known.facts(device)
            amounts = tuple(
                (local.setdefault(counter, len(local)), amount) for counter, amount in facts.counter_amounts
            )
            component.account = facts.key
            component.counter_amounts[number] = amounts
            groups = tuple((sets.setdefault(place, len(sets)), one) for place, one in facts.groups)
            component.signatures[number] = (self._class(number, device), amounts, groups)
        component.counters, component.sets = list(local), list(sets)
        limits: Hashable = ()
        if local or sets:
            device = self._devices[component.members[0]]
            account = self._attempt.known.account(device)
            left = tuple(account.available.get(counter) for counter in local)
            held = self._attempt.known.facts(device).group_uses
            limits = (account.is_overdrawn, left, tuple(held.get(name) for _, name in sets))
        component.template = (tuple(component.signatures.values()), limits)
        return component

    def _class(self, number: int, device: DeviceRecord) -> Hashable:
        """Return everything that the search can see of a single device."""
        attempt, context = self._attempt, self._attempt.context
        seen: list[Hashable] = [device.is_shared, device.id in context.held.devices]
        for alternative, candidates in self._candidates.items():
            place = bisect_left(candidates, number)
            if place == len(candidates) or candidates[place] != number:
                seen.append(None)
                continue
            needs = attempt.known.needs(alternative, device) if context.features.consumable_capacity else None
            tainted = bool(device.wire.get("taints")) and attempt.known.is_tainted(alternative, device)
            seen.append((tainted, tuple((name, one.amount) for name, one in sorted((needs or {}).items()))))
        if context.features.consumable_capacity:
            held = context.held.capacity.get(device.id)
            seen.append(None if held is None else tuple(sorted(held.items())))
            seen.append(tuple(sorted((one.name, one.total) for one in device.capacities)))
        for claim in attempt.constraints:
            seen += [attempt.known.attribute(device, constraint.attribute) for constraint in claim]
        return tuple(seen)
