"""What is left of the counters that the devices of a GPU share, and which devices still fit.

In: counter sets as wire dicts, devices, and those of them that are held. Out: amounts by counter. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_driver.allocation.pools.capacity import Amount
from dra_driver.allocation.pools.counters import CounterName, summed_counter_amounts
from dra_driver.allocation.pools.devices import DeviceRecord, counter_value
from dra_driver.model.wire import Wire
from dra_driver.views.fleet.device_facts import part_of

Amounts = dict[CounterName, Amount]


def counters_used(held: Iterable[DeviceRecord]) -> Amounts:
    """Return what held devices take from each counter."""
    used: Amounts = {}
    for device in held:
        _take(used, device)
    return used


def counters_left(sets: Iterable[Wire], used: Mapping[CounterName, Amount]) -> Amounts:
    """Return what is left of each counter of some sets."""
    return {
        (one["name"], name): counter_value(counter) - used.get((one["name"], name), 0)
        for one in sets
        for name, counter in (one.get("counters") or {}).items()
    }


def fits(device: DeviceRecord, left: Mapping[CounterName, Amount]) -> bool:
    """Return whether enough is left for what a device takes. Nothing is left of a counter that is not known."""
    return all(amount <= left.get(counter, 0) for counter, amount in summed_counter_amounts(device))


def partitions_left(free: Iterable[DeviceRecord], left: Mapping[CounterName, Amount]) -> dict[str, int]:
    """Return, by profile, how many of some free partitions could exist at once if no other profile were used."""
    by_profile: dict[str, list[DeviceRecord]] = {}
    for one in free:
        by_profile.setdefault(part_of(one.wire), []).append(one)
    return {profile: count for profile, devices in by_profile.items() if (count := _count_at_once(devices, left))}


def _count_at_once(devices: Iterable[DeviceRecord], left: Mapping[CounterName, Amount]) -> int:
    count, used = 0, Amounts()
    for one in devices:
        wanted = summed_counter_amounts(one)
        if all(amount + used.get(counter, 0) <= left.get(counter, 0) for counter, amount in wanted):
            count += 1
            _take(used, one)
    return count


def _take(used: Amounts, device: DeviceRecord) -> None:
    for counter, amount in summed_counter_amounts(device):
        used[counter] = used.get(counter, 0) + amount
