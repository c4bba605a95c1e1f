"""Bounds: whether a request could still get all its devices, judged by counters and free devices alone.

In: a state of a very long search. Out: a limit on how many more devices a request could get. A state that the limit
rules out has no solution, so it is not searched. Nothing that the search would leave behind is lost, because
alternatives whose candidates could leave a trace are not judged.
"""

from __future__ import annotations

from dra_driver.allocation.pools.capacity import Amount
from dra_driver.allocation.requests import Alternative
from dra_driver.allocation.search.symmetry import Component, Symmetry


class Bounds:
    """Limits for one search."""

    def __init__(self, symmetry: Symmetry) -> None:
        self._symmetry = symmetry
        self._parts: dict[Alternative, list[tuple[Component, list[int], list[tuple[int, Amount]]]] | None] = {}

    def can_fill(self, alternative: Alternative, missing: int) -> bool:
        """Return whether an alternative might still get `missing` more devices."""
        if alternative not in self._parts:
            self._parts[alternative] = self._find_parts(alternative)
        parts = self._parts[alternative]
        if parts is None:
            return True
        for component, members, least in parts:
            missing -= self._most(alternative, component, members, least)
            if missing <= 0:
                return True
        return False

    def _most(
        self, alternative: Alternative, component: Component, members: list[int], least: list[tuple[int, Amount]]
    ) -> int:
        """Return the most devices that one component could yield."""
        attempt, devices = self._symmetry.attempt, self._symmetry.devices
        most = sum(not attempt.is_busy(alternative, devices[member]) for member in members)
        if not least or not most:
            return most
        account = attempt.known.account(devices[members[0]])
        if account.is_overdrawn:
            return 0
        consumed = attempt.consumed.get(component.account, {})
        for place, amount in least:
            counter = component.counters[place]
            limit = account.available.get(counter)
            if limit is not None:
                most = min(most, int((limit - consumed.get(counter, 0)) // amount))
        return most

    def _find_parts(
        self, alternative: Alternative
    ) -> list[tuple[Component, list[int], list[tuple[int, Amount]]]] | None:
        """Group an alternative's candidates by component; return None where they can't be judged."""
        symmetry = self._symmetry
        candidates = symmetry.candidates[alternative]
        if alternative.is_all or symmetry.may_leave_traces(alternative):
            return None
        if any(symmetry.devices[number].is_shared for number in candidates):
            return None
        grouped: dict[int, tuple[Component, list[int]]] = {}
        for number in candidates:
            component = symmetry.component(number)
            grouped.setdefault(component.members[0], (component, []))[1].append(number)
        return [(c, members, _least(c, members)) for c, members in grouped.values()]


def _least(component: Component, members: list[int]) -> list[tuple[int, Amount]]:
    """Return the counters from which every candidate takes, with the smallest amount that any of them takes."""
    takes = [dict(component.takes[member]) for member in members]
    common = set(takes[0]).intersection(*takes[1:])
    least = ((counter, min(one[counter] for one in takes)) for counter in sorted(common))
    return [(counter, amount) for counter, amount in least if amount > 0]
