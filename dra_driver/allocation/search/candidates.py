"""Candidates: the devices that each request may get on one node, determined before the search.

In: a plan and one node's pools. Out: a `PreparedNode`: its devices in order, how many of them each request wants, and
which devices "all" means. Errors are raised in Kubernetes' order.

Source: Kubernetes structured allocator, the first half of Allocate, validateDeviceRequest and isSelectable.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.allocation.constraints.constraint import Constraint
from dra_driver.allocation.outcome import AllocatorError, Category
from dra_driver.allocation.pools.devices import DeviceRecord, SliceRecord
from dra_driver.allocation.pools.pools import Pool
from dra_driver.allocation.pools.reach import reaches_device
from dra_driver.allocation.requests import Alternative, ClaimPlan, RequestPlan
from dra_driver.allocation.search.attempt import Attempt
from dra_driver.allocation.search.context import Context
from dra_driver.model import limits
from dra_driver.model.wire import Wire


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
        maximum, minimum = limits.ALLOCATION_RESULTS, 0
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
