"""An attempt: the state of one search on one node, and how a device is placed and taken back.

In: candidates, one at a time. Out: whether a candidate could be placed. Every placement can be undone, in reverse
order. Where a version of the allocator fails to release something (a "leak"), this module does the same and counts it
in `leaks`.

Source: Kubernetes structured allocator, allocateDevice and its roll-back.

The facts about devices that do not depend on what is placed (the account that a device takes counters from, its
attribute values, what a request would consume of it, whether a taint forbids it) are computed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from dra_driver.allocation.capacity import Amount, Arithmetic, CapacityError, Consumption, consume
from dra_driver.allocation.constraints import ComparedValue, Constraint, compared_value, look_up
from dra_driver.allocation.pools import DeviceId, DeviceRecord, Pool, PoolId
from dra_driver.allocation.requests import Alternative, DerivedAttribute, Plan
from dra_driver.allocation.rules import AllocatorError, AllocatorRules, Category, Features
from dra_driver.allocation.usage import (
    Account,
    Accounts,
    ClaimHoldings,
    CounterName,
    Groups,
    GroupUse,
    blocking_taint,
    group_use_of,
    groups_of,
    summed_counter_amounts,
)
from dra_driver.base.versions import COMPATIBILITY_GROUPS, LIST_ATTRIBUTES, OPTIONAL_NODE_OPERATIONS
from dra_driver.base.wire import Wire


@dataclass(slots=True)
class Context:
    """The state that all attempts for one pod share."""

    plan: Plan
    rules: AllocatorRules
    features: Features
    held: ClaimHoldings
    accounts: Accounts

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic by which capacity is counted."""
        return Arithmetic(self.rules.capacity_errors, self.rules.capacity_errors and self.features.fractional_range)

    @property
    def has_groups(self) -> bool:
        """Whether devices that draw from one counter set have to have a compatibility group in common."""
        return self.rules.knows(COMPATIBILITY_GROUPS) and self.features.compatibility_groups

    def may_skip_operations(self, node: Wire) -> bool:
        """Return whether devices whose driver skips calls of the kubelet can be allocated on a node.

        Variants without alpha features do not look at it.
        """
        if not (self.rules.knows(OPTIONAL_NODE_OPERATIONS) and self.rules.variant == "experimental"):
            return True
        declared = (node.get("status") or {}).get("declaredFeatures") or ()
        return self.features.optional_operations and OPTIONAL_NODE_OPERATIONS in declared

    @property
    def compares_lists(self) -> bool:
        """Whether constraints compare attributes as lists."""
        return self.rules.knows(LIST_ATTRIBUTES) and self.features.list_attributes


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
        self.attributes: dict[str | DerivedAttribute, ComparedValue | None] = {}
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
                name = device.id[2] if alternative.is_all else "/".join(device.id)
                where = f"claim {claim}, request {alternative.name}: checking capacity for device {name}"
                raise AllocatorError(Category.BAD_CAPACITY, f"{where}: {error}") from error
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

    def attribute(
        self, device: DeviceRecord, name: str, alternative: Alternative | None = None
    ) -> ComparedValue | None:
        """Return the value that constraints on an attribute see; an alternative may derive it from the device.

        Raises:
            AllocatorError: The expression from which it is derived fails.
        """
        derived = alternative.derived.get(name) if alternative is not None else None
        key = name if derived is None else derived
        known = self.facts(device).attributes
        value = known.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            lists = self._context.compares_lists
            if derived is None:
                value = look_up(device.wire, device.driver, name, lists=lists)
            else:
                value = compared_value(derived.value(device), lists=lists)
            known[key] = value
        return value  # type: ignore[return-value]

    def account(self, device: DeviceRecord) -> Account:
        """Return the account from which a device takes counters."""
        facts = self.facts(device)
        if facts.account is None:
            facts.account = self._context.accounts.account(self._pool(device), device)
        return facts.account


GroupUses = tuple[GroupUse | None, ...]
"""The use of the counter sets that a device draws from, before it did; () if it names no compatibility groups."""


@dataclass(slots=True)
class PlacedDevice:
    """One device that was placed for a request, and what must be undone when it is taken back."""

    alternative: Alternative
    device: DeviceRecord
    needs: Needs
    is_share: bool
    drawn: GroupUses | None  # None if it draws from no counter set
    was_shared: bool
    constraints: list[Constraint]


class Attempt:
    """The devices placed so far for a pod's claims on one node."""

    def __init__(self, context: Context, pools: Sequence[Pool], node: Wire) -> None:
        self.context = context
        self._may_skip_operations = context.may_skip_operations(node)
        self.constraints: list[list[Constraint]] = []
        self.results: list[list[PlacedDevice]] = [[] for _ in context.plan.claims]
        self.marks: dict[DeviceId, set[int]] = {}
        self.shared: dict[DeviceId, dict[str, Amount]] = {}
        self.consumed: dict[Hashable, dict[CounterName, Amount]] = {}
        self.group_uses: dict[tuple[PoolId, str], GroupUse | None] = {}
        self.leaks = 0
        self.leaked: set[DeviceRecord] = set()
        self.known = KnownDevices(context, pools)

    def is_busy(self, alternative: Alternative, device: DeviceRecord) -> bool:
        """Return whether the device is already taken, by this attempt or by an allocated claim."""
        marks = self.marks.get(device.id)
        if alternative.is_admin:
            return bool(marks) and alternative.claim in marks  # type: ignore[operator]
        return bool(marks) or device.id in self.context.held.devices

    def is_prepared_here(self, device: DeviceRecord) -> bool:
        """Return whether the node's kubelet can use the device: one whose driver skips calls needs a feature of it."""
        return self._may_skip_operations or not device.slice.skips_operations

    def has_room(self, alternative: Alternative, device: DeviceRecord, *, ignoring_use: bool = False) -> bool:
        """Return whether a device has enough capacity left for a request."""
        if not self.context.features.consumable_capacity:
            return True
        needs = self.known.needs(alternative, device)
        if needs is None:
            return False
        before: dict[str, Amount] = {} if ignoring_use else self.context.held.capacity.get(device.id, {})
        now: dict[str, Amount] = {} if ignoring_use else self.shared.get(device.id, {})
        return all(
            before.get(capacity.name, 0) + needs[capacity.name].amount + now.get(capacity.name, 0) <= capacity.total
            for capacity in device.capacities
        )

    def place(self, alternative: Alternative, device: DeviceRecord, *, must: bool) -> PlacedDevice | None:
        """Place a device that the selectors accept for a request; return None if the device is not available.

        Raises:
            AllocatorError: A constraint refuses the device, and `must` says that the request can't do without it.
        """
        features, rules = self.context.features, self.context.rules
        share = features.consumable_capacity and device.is_shared
        is_refused = self.is_busy(alternative, device) and not (share and alternative.is_admin)
        counts = bool(device.wire.get("consumesCounters"))
        if is_refused or not self.is_prepared_here(device) or (counts and not features.partitionable):
            return None
        drawn: GroupUses | None = None
        if counts and not (share and self._is_shared_already(device)):
            drawn = self._consume_counters(device)
            if drawn is None:
                return None
        if features.taints and device.wire.get("taints") and self.known.is_tainted(alternative, device):
            self._refuse(device, drawn)
            return None
        joined = self._join(alternative, device, drawn, must=must)
        if joined is None:
            return None
        placed = PlacedDevice(alternative, device, {}, share, drawn, False, joined)
        if not share:
            self.marks.setdefault(device.id, set()).add(alternative.claim)
        if features.consumable_capacity:
            if not self.has_room(alternative, device):
                if rules.leaks:
                    self._leak(device)
                else:
                    self._give_back(placed)
                return None
            if share:
                self._share(placed)
        self.results[alternative.claim].append(placed)
        return placed

    def remove(self, placed: PlacedDevice) -> None:
        """Undo the latest placement."""
        self.results[placed.alternative.claim].pop()
        if placed.is_share:
            self._unshare(placed)
        self._give_back(placed)

    def _join(
        self, alternative: Alternative, device: DeviceRecord, drawn: GroupUses | None, *, must: bool
    ) -> list[Constraint] | None:
        """Let the device join all constraints of the claim; return None if one of them refuses it."""
        joined: list[Constraint] = []
        if not self.constraints:
            return joined
        for constraint in self.constraints[alternative.claim]:
            if not constraint.covers(alternative.request_name, alternative.full_name):
                continue
            value = self.known.attribute(device, constraint.attribute, alternative)
            if constraint.add(alternative.request_name, value):
                joined.append(constraint)
                continue
            for earlier in joined:
                earlier.remove(alternative.request_name)
            if must:
                claim = self.context.plan.claims[alternative.claim].name
                text = (
                    f"claim {claim}, request {alternative.name}: cannot add device {'/'.join(device.id)}"
                    " because a claim constraint would not be satisfied"
                )
                raise AllocatorError(Category.ALL_CONSTRAINT_UNSATISFIED, text)
            self._refuse(device, drawn)
            return None
        return joined

    def _refuse(self, device: DeviceRecord, drawn: GroupUses | None) -> None:
        """Release the counters that a refused device took, or leak them where the version does."""
        if drawn is not None:
            if self.context.rules.leaks:
                self._leak(device)
            else:
                self._release_counters(device, drawn)

    def _leak(self, device: DeviceRecord) -> None:
        self.leaks += 1
        self.leaked.add(device)

    def _give_back(self, placed: PlacedDevice) -> None:
        device, alternative = placed.device, placed.alternative
        for constraint in placed.constraints:
            constraint.remove(alternative.request_name)
        if not placed.is_share:
            self.marks[device.id].discard(alternative.claim)
        if placed.drawn is not None:
            if placed.is_share and self.context.rules.leaks:
                self._leak(device)
            else:
                self._release_counters(device, placed.drawn)

    def _is_shared_already(self, device: DeviceRecord) -> bool:
        held = self.context.held
        is_held = device.id in held.capacity or (self.context.rules.any_share_is_shared and device.id in held.shares)
        return is_held or device.id in self.shared

    def _share(self, placed: PlacedDevice) -> None:
        device = placed.device
        needs = self.known.needs(placed.alternative, device) or {}
        placed.needs = needs
        placed.was_shared = device.id in self.shared
        held = self.shared.setdefault(device.id, {})
        for name, one in needs.items():
            held[name] = held.get(name, 0) + one.amount

    def _unshare(self, placed: PlacedDevice) -> None:
        device, leaks = placed.device, self.context.rules.leaks
        held = self.shared.get(device.id)
        if held is None:
            return
        if leaks and not placed.needs:
            self._leak(device)  # the share of a device without capacity is never removed
            return
        for name, one in placed.needs.items():
            if name in held:
                held[name] -= one.amount
        if not any(held.values()):
            if placed.was_shared and not leaks:
                self.shared[device.id] = {}
            else:
                if placed.was_shared:
                    self._leak(device)
                del self.shared[device.id]

    def group_use(self, device: DeviceRecord, place: tuple[PoolId, str]) -> GroupUse | None:
        """Return the use of a counter set by devices that are placed or held; None if no device draws from it."""
        return self.group_uses.get(place) or self.known.facts(device).group_uses.get(place[1])

    def _fits_groups(self, device: DeviceRecord) -> bool:
        group_uses = ((self.group_use(device, place), groups) for place, groups in self.known.facts(device).groups)
        return all(group_use is None or group_use.admits(groups) for group_use, groups in group_uses)

    def _consume_counters(self, device: DeviceRecord) -> GroupUses | None:
        """Consume the counters of a device, and return the use of their sets before, which releasing them restores.

        Return None if too little is left or its compatibility groups forbid it.
        """
        facts = self.known.facts(device)
        if facts.groups and not self._fits_groups(device):
            return None
        account = facts.account or self.known.account(device)
        if account.is_overdrawn:
            return None
        consumed = self.consumed.setdefault(facts.key, {})
        available = account.available
        for counter, amount in facts.counter_amounts:
            limit = available.get(counter)
            if limit is not None and consumed.get(counter, 0) + amount > limit:
                return None
        for counter, amount in facts.counter_amounts:
            consumed[counter] = consumed.get(counter, 0) + amount
        before = tuple(self.group_uses.get(place) for place, _ in facts.groups)
        for place, groups in facts.groups:
            group_use = self.group_use(device, place)
            self.group_uses[place] = group_use_of(groups) if group_use is None else group_use.with_device(groups)
        return before

    def _release_counters(self, device: DeviceRecord, drawn: GroupUses) -> None:
        facts = self.known.facts(device)
        consumed = self.consumed[facts.key]
        for counter, amount in facts.counter_amounts:
            consumed[counter] -= amount
        for (place, _), before in zip(facts.groups, drawn, strict=True):
            self.group_uses[place] = before
