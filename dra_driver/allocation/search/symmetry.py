"""Symmetry: which states of a search differ only in the names of equal devices.

In: a search that has become long. Out: a key per state. If a state failed without leaving anything behind ("leaked")
and without meeting a limit, every state with the same key fails too, so the search can skip it without changing its
outcome.

A state is the multiset of the states of its components (`components`), as far as the rest of the search can see them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Multiset
from collections.abc import Hashable, Sequence

from dra_driver.allocation.constraints.lists import DistinctLists, MatchLists
from dra_driver.allocation.constraints.single_values import DistinctAttribute
from dra_driver.allocation.outcome import AllocatorError
from dra_driver.allocation.pools.devices import DeviceRecord
from dra_driver.allocation.requests import Alternative, Plan
from dra_driver.allocation.search.attempt import Attempt
from dra_driver.allocation.search.candidates import PreparedNode
from dra_driver.allocation.search.components import Component, find_components


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
        counting = [pool.id[1] for pool in self._prepared.pools if any(one.consumes for one in pool.slices)]
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
        """List what each alternative could ever take; return False if a selector fails, which must stay visible."""
        attempt = self.attempt
        for alternative in self.plan.alternatives:
            found = []
            for number, device in enumerate(self.devices):
                if not alternative.is_admin and device.id in attempt.context.held.devices:
                    continue
                try:
                    if self._prepared.accepts(alternative, device) and self._is_possible(alternative, device):
                        found.append(number)
                except AllocatorError:
                    return False
            self.candidates[alternative] = found
        return True

    def _is_possible(self, alternative: Alternative, device: DeviceRecord) -> bool:
        """Return whether a device could be placed, or could at least leave a trace when it is refused."""
        attempt, features = self.attempt, self.attempt.context.features
        counts = bool(device.wire.get("consumesCounters"))
        if counts and not features.partitionable:
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
