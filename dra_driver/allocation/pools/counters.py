"""Counters: the amounts that partitions of one device share, and how much of them is left.

In: pools and what is allocated. Out: for each counter, what is available (computed once) and what each attempt
consumes.

Source: Kubernetes structured allocator, checkAvailableCounters. Before 1.36.4 counters are remembered by pool *name*
only, so two drivers that use the same pool name share one account, which the first of the two pools fills.
"""

from __future__ import annotations

from collections.abc import Hashable

from dra_driver.allocation.pools.capacity import Amount
from dra_driver.allocation.pools.compatibility import GroupUse, group_uses_of
from dra_driver.allocation.pools.devices import DeviceId, DeviceRecord, PoolId, SliceRecord, counter_value
from dra_driver.allocation.pools.held import ClaimHoldings
from dra_driver.allocation.pools.pools import Pool
from dra_driver.allocation.rules import AllocatorRules

CounterName = tuple[str, str]  # counter set, counter


class Account:
    """The counters of one pool (or of all pools with one name). `available` never changes once it is computed."""

    __slots__ = ("available", "is_overdrawn")

    def __init__(self, available: dict[CounterName, Amount]) -> None:
        self.available = available
        # Every check looks at all counters of the pool: one counter below zero refuses every device that uses counters.
        self.is_overdrawn = any(amount < 0 for amount in available.values())


class Accounts:
    """All accounts that have been opened, for all nodes."""

    def __init__(self, rules: AllocatorRules, held: ClaimHoldings) -> None:
        self._rules = rules
        self._held = held
        self._open: dict[Hashable, Account] = {}
        self._group_uses: dict[PoolId, dict[str, GroupUse]] = {}

    def forget(self) -> None:
        """Discard all accounts, because the devices that are held have changed."""
        self._open.clear()
        self._group_uses.clear()

    def key(self, pool: Pool, device: DeviceRecord) -> Hashable:
        """Return the key of the account from which a device takes."""
        match self._rules.counters_of:
            case "slice":
                return device.slice.name
            case "pool":
                return pool.id
            case _:
                return pool.id[1]

    def account(self, pool: Pool, device: DeviceRecord) -> Account:
        """Return the account of a device; the first pool that needs the account opens it."""
        key = self.key(pool, device)
        account = self._open.get(key)
        if account is None:
            if self._rules.counters_of == "slice":
                account = Account(self._available({one["name"]: one for one in device.slice.sets}, [device.slice]))
            else:
                account = Account(self._available(dict(pool.sets), [*pool.slices, *pool.others]))
            self._open[key] = account
        return account

    def group_uses(self, pool: Pool) -> dict[str, GroupUse]:
        """Return how the held devices of a pool use its counter sets, by the name of the set."""
        found = self._group_uses.get(pool.id)
        if found is None:
            devices = [one for record in (*pool.slices, *pool.others) for one in record.devices]
            found = self._group_uses[pool.id] = group_uses_of(one for one in devices if self._is_held(one.id))
        return found

    def _available(self, sets: dict[str, dict[str, object]], slices: list[SliceRecord]) -> dict[CounterName, Amount]:
        available = {
            (name, counter): counter_value(value)
            for name, one in sets.items()
            for counter, value in (one.get("counters") or {}).items()  # type: ignore[attr-defined]
        }
        for record in slices:
            for device in record.devices:
                if device.wire.get("consumesCounters") and self._is_held(device.id):
                    for counter, amount in summed_counter_amounts(device):
                        if counter in available:
                            available[counter] -= amount
        return available

    def _is_held(self, device: DeviceId) -> bool:
        held = self._held
        if device in held.devices:
            return True
        return self._rules.shares_hold_counters and (device in held.shares or device in held.capacity)


def summed_counter_amounts(device: DeviceRecord) -> list[tuple[CounterName, Amount]]:
    """List what a device takes from each counter; amounts of a set that is named twice are added up."""
    taken: dict[CounterName, Amount] = {}
    for name, counters in device.counter_amounts:
        for counter, amount in counters:
            taken[name, counter] = taken.get((name, counter), 0) + amount
    return list(taken.items())
