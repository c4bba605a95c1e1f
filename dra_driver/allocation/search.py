"""The search: which devices each request gets, as the first solution in the allocator's own order.

In: a plan and one node's pools. Out: the placed devices, or the reason why there are none. The search goes depth first
with an explicit stack, one frame per device.

Source: Kubernetes structured allocator, allocateOne. 1.36 tries the devices of one request in rising order only.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

from dra_driver.allocation.attempt import Attempt, PlacedDevice
from dra_driver.allocation.capacity import Amount
from dra_driver.allocation.constraints import MatchAttribute
from dra_driver.allocation.requests import Alternative, Plan, RequestPlan
from dra_driver.allocation.rules import AllocatorError, Category
from dra_driver.allocation.symmetry import Component, PreparedNode, Symmetry
from dra_driver.base import errors

# Bounds: whether each request of a search, taken alone, could still get all its devices.


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
        return all(self._is_judged(alternative) for alternative in request.alternatives)

    def _is_judged(self, alternative: Alternative) -> bool:
        if alternative not in self._parts:
            self._parts[alternative] = self._find_parts(alternative)
        return self._parts[alternative] is not None

    def _can_exceed(self) -> bool:
        """Return whether some choice of alternatives needs more results than a claim may have."""
        count = self._prepared.count
        most = (sum(max(map(count, r.alternatives)) for r in claim.requests) for claim in self._symmetry.plan.claims)
        return any(number > errors.ALLOCATION_RESULTS for number in most)

    def _max_devices(self, alternative: Alternative, part: ComponentPart) -> int:
        attempt, devices = self._symmetry.attempt, self._symmetry.devices
        settled = self._settled(alternative)
        known = attempt.known
        most = sum(
            not attempt.is_busy(alternative, devices[member])
            and all(known.attribute(devices[member], one.attribute, alternative) == one.value for one in settled)
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
    minimum = ((counter, min(amount[counter] for amount in amounts)) for counter in sorted(common))
    return [(counter, amount) for counter, amount in minimum if amount > 0]


REMEMBER_AFTER = 48  # steps of this search; before that, failed states are not remembered, so it stays cheap
BOUND_AFTER = 1_000  # steps of this search; after that, states that counters alone rule out are skipped
GIVE_UP_AFTER = 100_000  # steps of this search
GIVE_UP_SECONDS = 4.0  # of the processor's time, for steps that are slow
_LOOK_AT_CLOCK = 256  # steps


class Signal(Enum):
    """How a part of the search ended."""

    FOUND = "found"
    FAILED = "failed"
    TOO_MANY = "too many"  # more than 32 results for a claim, whichever device is taken
    DEEPER = "deeper"  # the part has not ended: a frame was pushed


@dataclass(slots=True)
class Frame:
    """One open decision: the end of a claim, the choice between alternatives, or one device of a request.

    `number` counts the alternatives or the devices of the request; `cursor` is the next candidate.
    """

    alternative: Alternative | None
    number: int = 0
    cursor: int = 0
    placed: PlacedDevice | None = None
    has_choice: bool = False
    only_too_many: bool = True
    key: Hashable = None
    steps: int = 0
    traces: int = 0


class Search:
    """One search on one node.

    `steps` counts the placements that the scheduler itself would try; if `is_pruned`, it would try more than that.
    `limits_met` counts how often a claim would have had too many results.
    """

    def __init__(
        self, plan: Plan, prepared: PreparedNode, attempt: Attempt, *, seconds: float = GIVE_UP_SECONDS
    ) -> None:
        self.plan = plan
        self.prepared = prepared
        self.attempt = attempt
        self.stack: list[Frame] = []
        self.steps = 0
        self.limits_met = 0
        self._own_steps = 0
        self._deadline = time.thread_time() + seconds
        self.is_pruned = False
        self._symmetry: Symmetry | None = None
        self._bounds: SearchBounds | None = None
        self._combinations = attempt.context.rules.combinations
        self._restarts = attempt.context.rules.all_restarts_alternatives
        self._too_many_stops = attempt.context.rules.too_many_stops

    def run(self) -> bool:
        """Search, and return whether everything was placed.

        Raises:
            AllocatorError: An error ended the search.
        """
        signal = self._enter_request(0, 0)
        while signal is not Signal.FOUND:
            if signal is not Signal.DEEPER:
                if not self.stack:
                    break
                frame = self.stack[-1]
                signal = self._resume(frame, signal)
            else:
                signal = self._resume(self.stack[-1], None)
        if signal is Signal.TOO_MANY:
            raise AllocatorError(Category.TOO_MANY_RESULTS, "allocation max size exceeded")
        return signal is Signal.FOUND

    def chosen(self) -> dict[tuple[int, int], int]:
        """Return the position of the chosen alternative for each request that has a choice, by claim and request."""
        return {
            (frame.alternative.claim, frame.alternative.request): frame.number
            for frame in self.stack
            if frame.has_choice and frame.alternative is not None
        }

    def _enter_request(self, claim: int, request: int) -> Signal:
        """Continue with a request, or with the next claim if no request is left."""
        claims = self.plan.claims
        self.steps += 1
        while claim < len(claims) and request >= len(claims[claim].requests):
            self.steps += 1
            claim, request = claim + 1, 0
            if claim < len(claims):
                self.stack.append(Frame(None))
        if claim >= len(claims):
            return Signal.FOUND
        requests = claims[claim].requests
        found = requests[request]
        first = found.alternatives[0]
        if found.has_choice:
            self.stack.append(Frame(first, has_choice=True))
            return self._enter(first, 0, 0)
        self.steps -= 1
        return self._enter(first, 0, 0)

    def _enter(self, alternative: Alternative, number: int, start: int) -> Signal:
        """Continue with one device of a request."""
        self.steps += 1
        wanted = self.prepared.count(alternative)
        if alternative.is_all and not self.prepared.all_devices(alternative):
            return Signal.FAILED
        if number >= wanted:
            return self._enter_request(alternative.claim, alternative.request + 1)
        if len(self.attempt.results[alternative.claim]) + wanted - number > errors.ALLOCATION_RESULTS:
            self.limits_met += 1
            return Signal.TOO_MANY if self._too_many_stops else Signal.FAILED
        frame = Frame(alternative, number, start)
        if self._own_steps > REMEMBER_AFTER and self._has_failed_before(frame):
            return Signal.FAILED
        self.stack.append(frame)
        return Signal.DEEPER

    def _resume(self, frame: Frame, below: Signal | None) -> Signal:
        """Continue with the newest open decision; `below` is how the decision after it ended."""
        if frame.alternative is None:
            self.stack.pop()
            return Signal.FAILED
        if frame.has_choice:
            return self._next_alternative(frame, below)
        if frame.placed is not None:
            self.attempt.remove(frame.placed)
            frame.placed = None
        if below is Signal.TOO_MANY:
            self.stack.pop()
            return below
        signal = self._next_device(frame)
        if signal is Signal.FAILED and frame.placed is None:
            self.stack.pop()
            if frame.key is not None and self._symmetry is not None and frame.traces == self._traces():
                self._symmetry.failed[frame.key] = self.steps - frame.steps
        return signal

    def _next_alternative(self, frame: Frame, below: Signal | None) -> Signal:
        first = frame.alternative
        assert first is not None  # noqa: S101
        alternatives = self.plan.claims[first.claim].requests[first.request].alternatives
        if below is not Signal.TOO_MANY:
            frame.only_too_many = False
        frame.number += 1
        if frame.number < len(alternatives):
            return self._enter(alternatives[frame.number], 0, 0)
        self.stack.pop()
        if frame.only_too_many and self._too_many_stops:
            return Signal.TOO_MANY
        return Signal.FAILED

    def _next_device(self, frame: Frame) -> Signal:
        """Place the next candidate and go deeper; return FAILED with nothing placed if none is left."""
        alternative = frame.alternative
        assert alternative is not None  # noqa: S101
        self._count_own_step()
        if alternative.is_all:
            if frame.cursor:
                return Signal.FAILED
            frame.cursor = 1
            device = self.prepared.all_devices(alternative)[frame.number]
            frame.placed = self.attempt.place(alternative, device, must=True)
            if frame.placed is None:
                return Signal.FAILED
            following = alternative
            if self._restarts:
                following = self.plan.claims[alternative.claim].requests[alternative.request].alternatives[0]
            return self._enter(following, frame.number + 1, 0)
        placed = self._place_next(frame, alternative)
        if not placed:
            return Signal.FAILED
        return self._enter(alternative, frame.number + 1, frame.cursor if self._combinations else 0)

    def _place_next(self, frame: Frame, alternative: Alternative) -> bool:
        if self._symmetry is not None and self._symmetry.is_usable:
            return self._place_candidate(frame, alternative, self._symmetry.candidates[alternative])
        attempt = self.attempt
        prepared = self.prepared
        has_holders = bool(attempt.context.held.devices)
        has_capacity = attempt.context.features.consumable_capacity
        cursor = frame.cursor
        while cursor < prepared.size:
            device = prepared.device(cursor)
            cursor += 1
            if (has_holders or attempt.marks) and attempt.is_busy(alternative, device):
                continue
            if not prepared.accepts(alternative, device):
                continue
            if has_capacity and not attempt.has_room(alternative, device):
                continue
            frame.placed = attempt.place(alternative, device, must=False)
            if frame.placed is not None:
                frame.cursor = cursor
                return True
        frame.cursor = cursor
        self.prepared.check_invalid_pools()
        return False

    def _place_candidate(self, frame: Frame, alternative: Alternative, candidates: Sequence[int]) -> bool:
        """Place the next of the devices that are known to be candidates."""
        attempt, devices = self.attempt, self.prepared.devices
        for place in range(bisect_left(candidates, frame.cursor), len(candidates)):
            device = devices[candidates[place]]
            if attempt.is_busy(alternative, device) or not attempt.has_room(alternative, device):
                continue
            frame.placed = attempt.place(alternative, device, must=False)
            if frame.placed is not None:
                frame.cursor = candidates[place] + 1
                return True
        frame.cursor = len(devices)
        self.prepared.check_invalid_pools()
        return False

    def _has_failed_before(self, frame: Frame) -> bool:
        """Return whether an equal state failed before; if so, count the steps that the scheduler would repeat."""
        if self._symmetry is None:
            self._symmetry = Symmetry(self.plan, self.prepared, self.attempt)
        if not self._symmetry.is_usable:
            return False
        alternative = frame.alternative
        assert alternative is not None  # noqa: S101
        if self._own_steps > BOUND_AFTER and not self._bound(alternative, frame.number):
            self.is_pruned = True
            return True
        key = self._symmetry.key(alternative, frame.number, frame.cursor)
        again = self._symmetry.failed.get(key)
        if again is not None:
            self.steps += again
            return True
        frame.key = key
        frame.steps = self.steps
        frame.traces = self._traces()
        return False

    def _bound(self, alternative: Alternative, number: int) -> bool:
        """Return whether a request might still get its missing devices."""
        if self._bounds is None:
            assert self._symmetry is not None  # noqa: S101
            self._bounds = SearchBounds(self._symmetry, self.prepared)
        return self._bounds.can_fill(alternative, self.prepared.count(alternative) - number)

    def _traces(self) -> int:
        """Count what a failed state may have left behind; a state that left something is not remembered."""
        return self.attempt.leaks + self.limits_met

    def _count_own_step(self) -> None:
        self._own_steps += 1
        is_late = self._own_steps % _LOOK_AT_CLOCK == 0 and time.thread_time() > self._deadline
        if is_late or self._own_steps > GIVE_UP_AFTER:
            raise AllocatorError(Category.UNDECIDED, f"no answer after {self._own_steps - 1} steps")
