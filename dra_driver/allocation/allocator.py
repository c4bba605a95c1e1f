"""The allocator: which devices a pod's claims get on a node, exactly as the scheduler would choose them.

    allocator = Allocator(slices=…, classes=…, allocated=…, kubernetes="1.35")
    pod = allocator.for_claims(claims)
    outcome = pod.allocate(node)          # once for each node

In: slices, classes and claims as wire dicts. Out: a `NodeOutcome` per node. Pure: no clock, no cluster; equal inputs
give equal outcomes. Where the scheduler's outcome depends on the order of a Go map, one possible outcome is returned
and marked as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_driver.allocation.features import Features
from dra_driver.allocation.matching import Matchers
from dra_driver.allocation.outcome import AllocatorError, Category, NodeOutcome
from dra_driver.allocation.pools.counters import Accounts
from dra_driver.allocation.pools.devices import PoolId
from dra_driver.allocation.pools.held import ClaimHoldings, held_by
from dra_driver.allocation.pools.pools import Pool, PoolIndex, invalid_pool
from dra_driver.allocation.requests import ClaimReader, Plan
from dra_driver.allocation.result import allocation_result
from dra_driver.allocation.rules import choose_rules
from dra_driver.allocation.search.attempt import Attempt
from dra_driver.allocation.search.candidates import PreparedNode
from dra_driver.allocation.search.context import Context
from dra_driver.allocation.search.search import Search
from dra_driver.model.kubernetes import DERIVED_ATTRIBUTES, Since
from dra_driver.model.wire import ClaimWire, ClassWire, SliceWire, Wire

VISIT_SECONDS = 150e-9  # the time in which the Go allocator looks at one device (AMD EPYC, one thread)


class Allocator:
    """The state of a cluster, read once.

    Args:
        slices: ResourceSlices as the API server stores them.
        classes: DeviceClasses.
        allocated: ResourceClaims whose allocations hold devices; a claim without an allocation holds nothing.
        kubernetes: the version whose allocator decides, such as "1.35" or "1.35.8".
        features: what that allocator may do; derived from the version and `gates` if absent.
        gates: feature gates that override the defaults of the version.

    Raises:
        UnknownVersionError: There are no rules for the version.
    """

    def __init__(
        self,
        *,
        slices: Sequence[SliceWire],
        classes: Sequence[ClassWire],
        allocated: Sequence[ClaimWire] = (),
        kubernetes: str = "1.35",
        features: Features | None = None,
        gates: Mapping[str, bool] | None = None,
    ) -> None:
        self.features = features if features is not None else Features.from_gates(kubernetes, gates)
        self.rules = choose_rules(kubernetes, self.features)
        self.index = PoolIndex(slices, self.rules, self.features)
        self.held: ClaimHoldings = held_by(allocated, shares=self.features.consumable_capacity)
        self._matchers = Matchers(self.rules.kubernetes, self.rules.selector_gates(self.features))
        self._planner = ClaimReader(classes, self.rules, self.features, self._matchers)
        self._accounts = Accounts(self.rules, self.held)

    def for_claims(self, claims: Sequence[ClaimWire]) -> PodAllocator:
        """Read the claims of one pod, which are allocated together. Faults in claims are reported by `allocate`."""
        return PodAllocator(self, claims)

    def hold(self, claim: ClaimWire) -> set[PoolId]:
        """Mark the devices of one more allocated claim as held and return their pools. This can't be undone."""
        self._accounts.forget()
        return self.held.add(claim, shares=self.features.consumable_capacity)

    def context(self, plan: Plan) -> Context:
        """Return the state that all attempts for one pod share."""
        return Context(plan, self.rules, self.features, self.held, self._accounts)

    def plan(self, claims: Sequence[ClaimWire]) -> Plan:
        """Read claims and the classes that they name."""
        return self._planner.plan(claims)


class PodAllocator:
    """Allocates one pod's claims on any number of nodes, one node at a time."""

    def __init__(self, allocator: Allocator, claims: Sequence[ClaimWire]) -> None:
        self.allocator = allocator
        self.plan = allocator.plan(claims)
        self.context = allocator.context(self.plan)

    def pools(self, node: Wire) -> list[Pool]:
        """Return the pools that a node can reach.

        Raises:
            AllocatorError: A node selector of a slice can't be parsed.
        """
        return self.allocator.index.pools(node)

    def allocate(self, node: Wire) -> NodeOutcome:
        """Allocate the pod's claims on one node and return the outcome.

        A refusal is an outcome, not an exception. The devices are not held afterwards: the same node gives the same
        outcome until `Allocator.hold` is called.
        """
        pools: list[Pool] = []
        search: Search | None = None
        try:
            self._refuse_unjudged()
            pools = self.pools(node)
            prepared = PreparedNode(self.context, pools, node)
            attempt = Attempt(self.plan, [], self.context, pools)
            attempt.constraints = prepared.check(attempt, self.plan.claims)
            search = Search(self.plan, prepared, attempt)
            found = search.run()
            if not found:
                refusal = None if self.context.rules.invalid_pool_is_fatal else invalid_pool(pools)
                if refusal is not None:
                    raise refusal
                return self._outcome(Category.NO_FIT, pools, search)
            chosen = search.chosen()
            results = [
                allocation_result(self.context, index, placed, chosen, node)
                for index, placed in enumerate(attempt.results)
            ]
        except AllocatorError as refusal:
            return self._outcome(refusal.category, pools, search, error=refusal.text)
        return self._outcome(Category.NONE, pools, search, results=results)

    def _refuse_unjudged(self) -> None:
        """Raise where the scheduler's behaviour is not known.

        Raises:
            AllocatorError: It is not known for this version with these features.
        """
        rules, features = self.context.rules, self.context.features
        reason = ""
        if rules.minor < Since.SAFE_SHARES and features.consumable_capacity:
            reason = "with DRAConsumableCapacity on, the scheduler of Kubernetes 1.34 crashes; leave the gate off there"
        elif rules.knows(DERIVED_ATTRIBUTES) and rules.variant == "experimental":
            if self.allocator.index.skips_nodes:
                reason = "skipNodeOperations of ResourceSlices while an alpha gate of the allocator is on"
            elif features.derived_attributes and any(
                one.wire.get("derivedAttributes") for one in self.plan.alternatives
            ):
                reason = "derivedAttributes with DRADerivedAttributes on"
        if reason:
            raise AllocatorError(Category.NOT_JUDGED, f"not judged: {reason}")

    def _outcome(
        self,
        category: Category,
        pools: Sequence[Pool],
        search: Search | None,
        *,
        results: list[Wire] | None = None,
        error: str | None = None,
    ) -> NodeOutcome:
        steps = search.steps if search is not None else 0
        devices = search.prepared.size if search is not None else 0
        return NodeOutcome(
            category,
            results,
            error,
            others_possible=self.allocator.rules.orders_vary and len(pools) > 1,
            steps=steps,
            seconds=steps * devices * VISIT_SECONDS,
            is_lower_bound=search is not None and search.is_pruned,
        )
