"""Symmetry: which states of a search differ only in the names of equal devices.

In: a search that has become long. Out: a key per state. If a state failed without leaving anything behind ("leaked")
and without meeting a limit, every state with the same key fails too, so the search can skip it without changing its
outcome.

A state is the multiset of the states of its components (`components`), as far as the rest of the search can see them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Multiset
from collections.abc import Hashable, Mapping, Sequence

from dra_driver.allocation.attempt import Attempt, Context
from dra_driver.allocation.capacity import Amount
from dra_driver.allocation.constraints import Constraint, DistinctAttribute, DistinctLists, MatchLists
from dra_driver.allocation.pools import DeviceRecord, Pool, PoolId, SliceRecord, reaches_device
from dra_driver.allocation.requests import Alternative, ClaimPlan, Plan, RequestPlan
from dra_driver.allocation.rules import AllocatorError, Category
from dra_driver.base import errors
from dra_driver.base.wire import Wire

# Candidates: the devices that each request may get on one node, determined before the search.


class PreparedNode:
    """The devices of one node, prepared for a plan."""

    __slots__ = ("_all", "_context", "_devices", "_only", "node", "pools", "size")

    def __init__(self, context: Context, pools: Sequence[Pool], node: Wire) -> None:
        self._context = context
        self.pools = pools
        self.node = node
        self._all: dict[Alternative, list[DeviceRecord]] = {}
        usable = [p for p in pools if not p.invalid and (not p.incomplete or context.rules.uses_incomplete_pools)]
        self._only: SliceRecord | None = None
        self._devices: list[DeviceRecord] | None = None
        if len(usable) == 1 and len(usable[0].slices) == 1:
            self._only = usable[0].slices[0]
            self.size = len(self._only.wires)
        else:
            self._devices = [device for pool in usable for device in pool.devices]
            self.size = len(self._devices)

    @property
    def devices(self) -> list[DeviceRecord]:
        """All usable devices of the node, in order."""
        if self._devices is None:
            assert self._only is not None  # noqa: S101
            self._devices = self._only.devices
        return self._devices

    def device(self, index: int) -> DeviceRecord:
        """Return one of `devices` without making all of them.

        Most nodes have one slice, and most searches look only at its first devices.
        """
        if self._devices is None:
            assert self._only is not None  # noqa: S101
            return self._only.device(index)
        return self._devices[index]

    def count(self, alternative: Alternative) -> int:
        """Return how many devices an alternative requests on this node."""
        return len(self._all[alternative]) if alternative.is_all else alternative.count

    def all_devices(self, alternative: Alternative) -> list[DeviceRecord]:
        """Return the devices that "all" means on this node."""
        return self._all[alternative]

    def check_invalid_pools(self) -> None:
        """Check the invalid pools, which the scheduler reaches after all others.

        Raises:
            AllocatorError: There is one, and in this version it ends the pod's scheduling.
        """
        if self._context.rules.invalid_pool_is_fatal:
            for pool in self.pools:
                if pool.invalid:
                    raise AllocatorError(Category.INVALID_POOL_ALL, f"pool {pool.id[1]} is invalid: {pool.invalid}")

    def accepts(self, alternative: Alternative, device: DeviceRecord) -> bool:
        """Return whether a device is accepted by the selectors and its own node selection.

        Raises:
            AllocatorError: A selector failed, which ends the pod's scheduling.
        """
        if device.slice.has_binding and not self._context.features.binding_conditions and _binds(device):
            return False
        verdict = alternative.matcher.verdict(device)
        if verdict is not True:
            if verdict is False:
                return False
            raise verdict
        return not device.slice.is_per_device or reaches_device(device.wire, self.node)

    def check(self, attempt: Attempt, claims: Sequence[ClaimPlan]) -> list[list[Constraint]]:
        """Check all claims and return their constraints; the list is empty for a plain plan.

        Raises:
            AllocatorError: The allocation is impossible, so that it need not be tried.
        """
        constraints: list[list[Constraint]] = []
        if self._context.plan.is_plain:
            return constraints
        for claim in claims:
            self._check_count(attempt, claim)
            constraints.append(claim.constraints())
        return constraints

    def _check_count(self, attempt: Attempt, claim: ClaimPlan) -> None:
        """Read all requests of a claim, and raise if it requests too many devices."""
        maximum, minimum = errors.ALLOCATION_RESULTS, 0
        for request in claim.requests:
            added = self._min_devices(attempt, claim, request)
            if self._context.rules.limit_per_request and added > maximum - minimum:
                text = (
                    f"claim {claim.name}, request {request.name}: adding {added} devices exceeds the claim limit of"
                    f" {maximum}, with {minimum} already accounted for"
                )
                raise AllocatorError(Category.TOO_MANY_RESULTS, text)
            minimum += added
        if minimum > maximum:
            text = f"claim {claim.name}: number of requested devices {minimum} exceeds the claim limit of {maximum}"
            raise AllocatorError(Category.TOO_MANY_RESULTS, text)

    def _min_devices(self, attempt: Attempt, claim: ClaimPlan, request: RequestPlan) -> int:
        for alternative in request.alternatives:
            if alternative.is_all:
                self._all[alternative] = self._expand(attempt, claim, request, alternative)
        if request.fault is not None:
            raise request.fault
        return min(self.count(alternative) for alternative in request.alternatives)

    def _expand(
        self, attempt: Attempt, claim: ClaimPlan, request: RequestPlan, alternative: Alternative
    ) -> list[DeviceRecord]:
        """Return the devices that "all" means; every pool must be complete and valid."""
        rules = self._context.rules
        judge = alternative
        if rules.late_match_key and alternative.number == 1 and request.alternatives[0].is_all:
            judge = request.alternatives[0]  # this version looks up the matches under the first alternative's key
        found: list[DeviceRecord] = []
        for pool in self.pools:
            where = (
                f"claim {claim.name}, request {alternative.name}: asks for all devices, but resource pool {pool.name}"
            )
            if pool.incomplete:
                raise AllocatorError(Category.INCOMPLETE_POOL_ALL, f"{where} is currently being updated")
            if pool.invalid:
                raise AllocatorError(Category.INVALID_POOL_ALL, f"{where} is currently invalid")
            found += [
                device
                for device in pool.devices
                if self.accepts(judge, device)
                and attempt.has_room(alternative, device, ignoring_use=rules.static_all_capacity)
            ]
        return found


def _binds(device: DeviceRecord) -> bool:
    return bool(device.wire.get("bindingConditions"))


# Components of a search: devices that share counters, described so that equal ones can be told apart from others.


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
            seen.append(tuple(sorted((capacity.name, capacity.total) for capacity in device.capacities)))
        for claim in attempt.constraints:
            for one in claim:
                deriving = (alternative for alternative in self._candidates if one.attribute in alternative.derived)
                values = (attempt.known.attribute(device, one.attribute, alternative) for alternative in deriving)
                seen += [one.compared(attempt.known.attribute(device, one.attribute)), *map(one.compared, values)]
        return tuple(seen)


class Symmetry:
    """What is known about a search before any state is examined; `is_usable` says whether states have keys."""

    def __init__(self, plan: Plan, prepared: PreparedNode, attempt: Attempt) -> None:
        self.plan = plan
        self.attempt = attempt
        self.devices = prepared.devices
        self._prepared = prepared
        self._combinations = attempt.context.rules.combinations
        self._index = {device: number for number, device in enumerate(self.devices)}
        self.candidates: dict[Alternative, list[int]] = {}
        self.failed: dict[Hashable, int] = {}
        self.is_usable = self._has_separate_accounts() and self._find_candidates()
        if self.is_usable:
            self._is_exact = self._order_matters()
            self._later = self._find_later()
            self._component_of = find_components(self.devices, attempt, self.candidates)

    def _has_separate_accounts(self) -> bool:
        """Return whether no two pools take counters from one account, which belongs to the pool that opened it."""
        if self.attempt.context.rules.counters_of != "pool name":
            return True
        counting = [pool.id[1] for pool in self._prepared.pools if any(slice_.consumes for slice_ in pool.slices)]
        return len(set(counting)) == len(counting)

    def _order_matters(self) -> bool:
        """Return whether the order of equal devices can change how a state ends.

        `distinctAttribute` remembers only the latest device; `All` fails quietly or with an error, depending on which
        of its devices comes first.
        """
        constraints = self.attempt.constraints
        kinds = (DistinctAttribute, DistinctLists, MatchLists)
        distinct = any(isinstance(c, kinds) for claim in constraints for c in claim)
        return (distinct and self._combinations) or any(
            alternative.is_all and constraints[alternative.claim] for alternative in self.plan.alternatives
        )

    def _find_candidates(self) -> bool:
        """List what each alternative could ever take; return False if an expression fails, which must stay visible."""
        attempt = self.attempt
        for alternative in self.plan.alternatives:
            found = []
            for number, device in enumerate(self.devices):
                if not alternative.is_admin and device.id in attempt.context.held.devices:
                    continue
                try:
                    if self._prepared.accepts(alternative, device) and self._is_possible(alternative, device):
                        for name in alternative.derived if attempt.constraints else ():
                            attempt.known.attribute(device, name, alternative)
                        found.append(number)
                except AllocatorError:
                    return False
            self.candidates[alternative] = found
        return True

    def _is_possible(self, alternative: Alternative, device: DeviceRecord) -> bool:
        """Return whether a device could be placed, or could at least leave a trace when it is refused."""
        attempt, features = self.attempt, self.attempt.context.features
        counts = bool(device.wire.get("consumesCounters"))
        if (counts and not features.partitionable) or not attempt.is_prepared_here(device):
            return False
        if features.consumable_capacity and attempt.known.needs(alternative, device) is None:
            return False
        if features.taints and device.wire.get("taints") and attempt.known.is_tainted(alternative, device):
            return counts and attempt.context.rules.leaks
        return True

    def _find_later(self) -> dict[tuple[int, int], frozenset[int]]:
        """Return, for each request, the devices that later requests could take."""
        later: dict[tuple[int, int], frozenset[int]] = {}
        seen: frozenset[int] = frozenset()
        for claim in reversed(range(len(self.plan.claims))):
            requests = self.plan.claims[claim].requests
            for number in reversed(range(len(requests))):
                later[claim, number] = seen
                for alternative in requests[number].alternatives:
                    seen |= frozenset(self.candidates[alternative])
        return later

    def component(self, number: int) -> Component:
        """Return the component of a device."""
        return self._component_of[number]

    def may_leak_state(self, alternative: Alternative) -> bool:
        """Return whether placing and refusing this alternative's candidates can leave something behind."""
        attempt = self.attempt
        if not attempt.context.rules.leaks:
            return False
        if any(
            one.covers(alternative.request_name, alternative.full_name)
            for claim in attempt.constraints[alternative.claim : alternative.claim + 1]
            for one in claim
        ):
            return True
        devices = [self.devices[number] for number in self.candidates[alternative]]
        return any(device.wire.get("taints") or device.is_shared for device in devices)

    def key(self, alternative: Alternative, number: int, start: int) -> Hashable:
        """Return the key of the state in which a request looks for its next device."""
        attempt = self.attempt
        start = start if self._combinations and not alternative.is_all else 0
        relevant = self._relevant(alternative, number, start)
        memory = tuple(c.state() for claim in attempt.constraints[alternative.claim :] for c in claim)
        marked: dict[int, list[Hashable]] = {}
        components: dict[int, Component] = {}
        for device in self._touched():
            index = self._index[device]
            component = self._component_of[index]
            place = component.members[0]
            components[place] = component
            entries = marked.setdefault(place, [])
            if index in relevant:
                shared = attempt.shared.get(device.id)
                amounts = None if shared is None else tuple(sorted(shared.items()))
                who = index if self._is_exact else component.signatures[index]
                entries.append((who, index < start, tuple(sorted(attempt.marks.get(device.id, ()))), amounts))
        states: list[Hashable] = []
        for place, component in components.items():
            if relevant.isdisjoint(component.members):
                continue
            consumed = attempt.consumed.get(component.account, {})
            states.append(
                (
                    place if self._is_exact else component.template,
                    bisect_left(component.members, start),
                    frozenset(Multiset(marked[place]).items()),
                    tuple(consumed.get(counter, 0) for counter in component.counters),
                    tuple(attempt.group_uses.get(place) for place in component.sets),
                )
            )
        held = len(attempt.results[alternative.claim])
        head = (alternative.claim, alternative.request, alternative.number, number, start, held)
        return head, memory, frozenset(Multiset(states).items())

    def _touched(self) -> set[DeviceRecord]:
        touched = {placed.device for results in self.attempt.results for placed in results}
        touched.update(self.attempt.leaked)
        return touched

    def _relevant(self, alternative: Alternative, number: int, start: int) -> frozenset[int] | set[int]:
        """Return the devices that the rest of the search could take."""
        later = self._later[alternative.claim, alternative.request]
        now: Sequence[int] = self.candidates[alternative]
        if alternative.is_all:
            now = [self._index[device] for device in self._prepared.all_devices(alternative)[number:]]
            first = self.plan.claims[alternative.claim].requests[alternative.request].alternatives[0]
            now = [*now, *self.candidates[first]]
        elif start:
            now = now[bisect_left(now, start) :]
        return later.union(now)
