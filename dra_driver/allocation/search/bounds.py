"""Bounds: whether each request of a search, taken alone, could still get all its devices.

In: a state of a very long search. Out: whether the current request, and each one after it, could still be filled from
the devices that are free, the counters that are left, and the value on which a constraint has settled. A state that
this rules out has no solution, so it is not searched. Skipping it loses no side effect of the search: requests whose
candidates could leave a trace or end the search with an error are not judged, and neither are the requests after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.allocation.constraints.single_values import MatchAttribute
from dra_driver.allocation.pools.capacity import Amount
from dra_driver.allocation.requests import Alternative, RequestPlan
from dra_driver.allocation.search.candidates import PreparedNode
from dra_driver.allocation.search.components import Component
from dra_driver.allocation.search.symmetry import Symmetry
from dra_driver.model import limits


@dataclass(frozen=True, slots=True)
class ComponentPart:
    """What an alternative could take of one component: its members, and the least that each takes from a counter."""

    component: Component
    members: list[int]
    minimum: list[tuple[int, Amount]]


class SearchBounds:
    """The bounds of one search."""

    def __init__(self, symmetry: Symmetry, prepared: PreparedNode) -> None:
        self._symmetry = symmetry
        self._prepared = prepared
        self._parts: dict[Alternative, list[ComponentPart] | None] = {}
        self._following: dict[tuple[int, int], list[RequestPlan]] = {}
        self._may_meet_limit = self._can_exceed()

    def can_fill(self, alternative: Alternative, missing: int) -> bool:
        """Return whether an alternative might still get `missing` devices, and each later request all its devices."""
        if self._is_judged(alternative) and not self._could_get(alternative, missing):
            return False
        return all(self._could_be_met(request) for request in self._after(alternative))

    def _could_be_met(self, request: RequestPlan) -> bool:
        return any(self._could_get(one, self._prepared.count(one)) for one in request.alternatives)

    def _could_get(self, alternative: Alternative, missing: int) -> bool:
        for part in self._parts[alternative] or ():
            missing -= self._max_devices(alternative, part)
            if missing <= 0:
                return True
        return missing <= 0

    def _after(self, alternative: Alternative) -> list[RequestPlan]:
        """Return the requests after that of an alternative, up to the first one that can't be judged."""
        place = alternative.claim, alternative.request
        if place not in self._following:
            self._following[place] = self._find_following(alternative)
        return self._following[place]

    def _find_following(self, alternative: Alternative) -> list[RequestPlan]:
        found: list[RequestPlan] = []
        claims = self._symmetry.plan.claims
        if self._may_meet_limit or not self._are_judged(claims[alternative.claim].requests[alternative.request]):
            return found
        for number, claim in enumerate(claims[alternative.claim :], alternative.claim):
            for request in claim.requests[alternative.request + 1 if number == alternative.claim else 0 :]:
                if not self._are_judged(request):
                    return found
                found.append(request)
        return found

    def _are_judged(self, request: RequestPlan) -> bool:
        return all(self._is_judged(one) for one in request.alternatives)

    def _is_judged(self, alternative: Alternative) -> bool:
        if alternative not in self._parts:
            self._parts[alternative] = self._find_parts(alternative)
        return self._parts[alternative] is not None

    def _can_exceed(self) -> bool:
        """Return whether some choice of alternatives needs more results than a claim may have."""
        count = self._prepared.count
        most = (sum(max(map(count, r.alternatives)) for r in claim.requests) for claim in self._symmetry.plan.claims)
        return any(number > limits.ALLOCATION_RESULTS for number in most)

    def _max_devices(self, alternative: Alternative, part: ComponentPart) -> int:
        """Return the most devices that one component could yield."""
        attempt, devices = self._symmetry.attempt, self._symmetry.devices
        settled = self._settled(alternative)
        most = sum(
            not attempt.is_busy(alternative, devices[member])
            and all(attempt.known.attribute(devices[member], one.attribute) == one.value for one in settled)
            for member in part.members
        )
        if not part.minimum or not most:
            return most
        account = attempt.known.account(devices[part.members[0]])
        if account.is_overdrawn:
            return 0
        consumed = attempt.consumed.get(part.component.account, {})
        for place, amount in part.minimum:
            counter = part.component.counters[place]
            limit = account.available.get(counter)
            if limit is not None:
                most = min(most, int((limit - consumed.get(counter, 0)) // amount))
        return most

    def _settled(self, alternative: Alternative) -> list[MatchAttribute]:
        """Return the constraints on an alternative that have settled on a value."""
        constraints = self._symmetry.attempt.constraints
        return [
            one
            for claim in constraints[alternative.claim : alternative.claim + 1]  # a plain plan has no constraints
            for one in claim
            if type(one) is MatchAttribute
            and one.count > 0
            and one.covers(alternative.request_name, alternative.full_name)
        ]

    def _find_parts(self, alternative: Alternative) -> list[ComponentPart] | None:
        """Group an alternative's candidates by component; return None where they can't be judged."""
        symmetry = self._symmetry
        candidates = symmetry.candidates[alternative]
        if alternative.is_all or symmetry.may_leak_state(alternative):
            return None
        if any(symmetry.devices[number].is_shared for number in candidates):
            return None
        grouped: dict[int, tuple[Component, list[int]]] = {}
        for number in candidates:
            component = symmetry.component(number)
            grouped.setdefault(component.members[0], (component, []))[1].append(number)
        return [
            ComponentPart(component, members, _min_amounts(component, members))
            for component, members in grouped.values()
        ]


def _min_amounts(component: Component, members: list[int]) -> list[tuple[int, Amount]]:
    """Return the counters from which every candidate takes, with the smallest amount that any of them takes."""
    amounts = [dict(component.counter_amounts[member]) for member in members]
    common = set(amounts[0]).intersection(*amounts[1:])
    minimum = ((counter, min(one[counter] for one in amounts)) for counter in sorted(common))
    return [(counter, amount) for counter, amount in minimum if amount > 0]
