"""Facts about the devices of a node that do not depend on what is placed; each fact is computed once.

In: devices and requests. Out: the account that a device takes counters from, its attribute values, what a request would
consume of it, and whether a taint prevents the allocation. Nothing in here changes when a device is placed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dra_driver.allocation.constraints.constraint import ComparedValue, look_up
from dra_driver.allocation.outcome import AllocatorError, Category
from dra_driver.allocation.pools.capacity import Amount, Consumption, consume
from dra_driver.allocation.pools.compatibility import Groups, GroupUse, groups_of
from dra_driver.allocation.pools.counters import Account, CounterName, summed_counter_amounts
from dra_driver.allocation.pools.devices import DeviceRecord, PoolId
from dra_driver.allocation.pools.pools import Pool
from dra_driver.allocation.pools.ranges import CapacityError
from dra_driver.allocation.pools.taints import blocking_taint
from dra_driver.allocation.requests import Alternative
from dra_driver.allocation.search.context import Context

Needs = dict[str, Consumption]
_UNKNOWN = object()


class DeviceFacts:
    """Facts about a device that do not depend on what is placed; each field is filled when it is first needed."""

    __slots__ = ("account", "attributes", "counter_amounts", "group_uses", "groups", "key", "needs", "taints")

    def __init__(self) -> None:
        self.key: Hashable = None
        self.account: Account | None = None
        self.counter_amounts: Sequence[tuple[CounterName, Amount]] = ()
        # By counter set: the groups that this device names there, and those that the devices in use have in common.
        self.groups: Sequence[tuple[tuple[PoolId, str], Groups]] = ()
        self.group_uses: dict[str, GroupUse] = {}
        self.attributes: dict[str, ComparedValue | None] = {}
        self.needs: dict[int, Needs | None] = {}
        self.taints: dict[int, bool] = {}


class KnownDevices:
    """The facts about the devices of one node's pools."""

    def __init__(self, context: Context, pools: Sequence[Pool]) -> None:
        self._context = context
        self._pools = pools
        self._facts: dict[DeviceRecord, DeviceFacts] = {}

    def facts(self, device: DeviceRecord) -> DeviceFacts:
        """Return the facts about a device; they are collected only once."""
        facts = self._facts.get(device)
        if facts is None:
            facts = self._facts[device] = DeviceFacts()
            if device.wire.get("consumesCounters"):
                pool = self._pool(device)
                facts.counter_amounts = summed_counter_amounts(device)
                facts.key = self._context.accounts.key(pool, device)
                if self._context.has_groups:
                    facts.groups = [((pool.id, name), groups) for name, groups in groups_of(device)]
                    facts.group_uses = self._context.accounts.group_uses(pool)
        return facts

    def _pool(self, device: DeviceRecord) -> Pool:
        return next(pool for pool in self._pools if pool.id == device.slice.pool_id)

    def needs(self, alternative: Alternative, device: DeviceRecord) -> Needs | None:
        """Return what a request would consume of a device, or None if the device could never provide it.

        Raises:
            AllocatorError: The requested amount ends the allocation.
        """
        known = self.facts(device).needs
        if id(alternative) not in known:
            try:
                known[id(alternative)] = consume(device.capacities, alternative.asked, self._context.arithmetic)
            except CapacityError as error:
                claim = self._context.plan.claims[alternative.claim].name
                where = f"claim {claim}, request {alternative.name}: checking capacity for device"
                raise AllocatorError(Category.BAD_CAPACITY, f"{where} {'/'.join(device.id)}: {error}") from error
        return known[id(alternative)]

    def is_tainted(self, alternative: Alternative, device: DeviceRecord) -> bool:
        """Return whether a taint of the device prevents its allocation to the request."""
        known = self.facts(device).taints
        tainted = known.get(id(alternative))
        if tainted is None:
            harmful = self._context.rules.only_harmful_taints
            taint = blocking_taint(device.wire["taints"], alternative.tolerations, only_harmful=harmful)
            tainted = known[id(alternative)] = taint is not None
        return tainted

    def attribute(self, device: DeviceRecord, name: str) -> ComparedValue | None:
        """Return the value that constraints on an attribute see."""
        known = self.facts(device).attributes
        value = known.get(name, _UNKNOWN)
        if value is _UNKNOWN:
            value = known[name] = look_up(device.wire, device.driver, name, lists=self._context.compares_lists)
        return value  # type: ignore[return-value]

    def account(self, device: DeviceRecord) -> Account:
        """Return the account from which a device takes counters."""
        facts = self.facts(device)
        if facts.account is None:
            facts.account = self._context.accounts.account(self._pool(device), device)
        return facts.account
