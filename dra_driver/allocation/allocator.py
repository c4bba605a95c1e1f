"""The allocator: which devices a pod's claims get on a node, exactly as the scheduler would choose them.

    allocator = Allocator(slices=…, classes=…, allocated=…, kubernetes="1.35")
    pod = allocator.for_claims(claims)
    outcome = pod.allocate(node)          # once for each node

In: slices, classes and claims as wire dicts. Out: a `NodeOutcome` per node. Pure: equal inputs give equal outcomes, but
for a search that is given up, as undecided, after a bounded time. Where the scheduler's outcome depends on the order of
a Go map, one possible outcome is returned and marked as such.

Results are written as the scheduler writes them: in search order, class configs before claim configs, and the node
selector of all used devices. Share IDs are derived from the claim's UID and the position of the device in it.
Source: Kubernetes structured allocator, Allocate.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dra_driver.allocation.attempt import Attempt, Context, PlacedDevice
from dra_driver.allocation.constraints import MatchAttribute
from dra_driver.allocation.node_selector import merge_selectors, only_node
from dra_driver.allocation.pools import Pool, PoolId, PoolIndex, invalid_pool
from dra_driver.allocation.requests import Alternative, ClaimPlan, ClaimReader, Matchers, Plan
from dra_driver.allocation.rules import AllocatorError, AllocatorRules, Category, Features, NodeOutcome, choose_rules
from dra_driver.allocation.search import Search
from dra_driver.allocation.symmetry import PreparedNode
from dra_driver.allocation.usage import Accounts, ClaimHoldings, held_by
from dra_driver.base.errors import InputError
from dra_driver.base.versions import Since
from dra_driver.base.wire import ClaimWire, ClassWire, SliceWire, Wire

_SHARES = uuid.UUID("6b1f3b1e-6a35-5c0b-8a52-0a3f4f3a6f0e")

Chosen = Mapping[tuple[int, int], int]


def allocation_result(context: Context, index: int, placed: Sequence[PlacedDevice], chosen: Chosen, node: Wire) -> Wire:
    """Return the AllocationResult of one claim."""
    claim = context.plan.claims[index]
    devices: Wire = {}
    if placed:
        devices["results"] = [_device(context, claim, number, one) for number, one in enumerate(placed)]
    picked = [request.alternatives[chosen.get((index, n), 0)] for n, request in enumerate(claim.requests)]
    config = _configs(claim, picked, merges=context.rules.merges_claim_configs)
    if config:
        devices["config"] = config
    result: Wire = {"devices": devices}
    try:
        selector = _node_selector(placed, node["metadata"]["name"], context.rules)
    except AllocatorError as error:
        where = f"create NodeSelector for claim {claim.wire['metadata']['name']}"
        raise AllocatorError(error.category, f"{where}: {error.text}") from error
    if selector is not None:
        result["nodeSelector"] = selector
    return result


def _device(context: Context, claim: ClaimPlan, number: int, placed: PlacedDevice) -> Wire:
    driver, pool, name = placed.device.id
    alternative = placed.alternative
    written: Wire = {"request": alternative.full_name, "driver": driver, "pool": pool, "device": name}
    if alternative.is_admin:
        written["adminAccess"] = True
    if context.rules.copies_tolerations and alternative.tolerations:
        written["tolerations"] = list(alternative.tolerations)
    if context.features.binding_conditions and context.rules.shares:
        for key in ("bindingConditions", "bindingFailureConditions"):
            if placed.device.wire.get(key):
                written[key] = placed.device.wire[key]
    if placed.device.slice.skips_operations and context.rules.variant == "experimental":
        written["skipNodeOperations"] = placed.device.slice.spec["skipNodeOperations"]
    if placed.is_share:
        seed = f"{claim.wire['metadata'].get('uid') or claim.name}/{number}/{'/'.join(placed.device.id)}"
        written["shareID"] = str(uuid.uuid5(_SHARES, seed))
        if placed.needs:
            written["consumedCapacity"] = {name: str(one.quantity) for name, one in sorted(placed.needs.items())}
    return written


def _configs(claim: ClaimPlan, picked: Sequence[Alternative], *, merges: bool) -> list[Wire]:
    """Return the configs of each class once, then those of the claim, once for every request that they name."""
    configs = _class_configs(picked)
    for config in ((claim.wire.get("spec") or {}).get("devices") or {}).get("config") or ():
        wanted: Sequence[str] = config.get("requests") or ()
        entry: dict[str, Any] = {"source": "FromClaim", **_opaque(config)}
        if not wanted:
            configs.append(entry)
            continue
        times = sum(a.request_name in wanted or a.full_name in wanted for a in picked)
        entry = {"source": "FromClaim", "requests": list(wanted), **_opaque(config)}
        configs += [entry] * (min(times, 1) if merges else times)
    if merges:
        for entry in configs:
            wanted = entry.get("requests") or ()
            if wanted and all(a.request_name in wanted or a.full_name in wanted for a in picked):
                del entry["requests"]
    return configs


def _class_configs(picked: Sequence[Alternative]) -> list[Wire]:
    """Return the configs of each class once, with the names of all requests for devices of the class."""
    configs: list[Wire] = []
    by_class: dict[str, list[list[str]]] = {}
    for alternative in picked:
        name = alternative.device_class["metadata"]["name"]
        if name in by_class:
            for requests in by_class[name]:
                requests.append(alternative.full_name)
            continue
        by_class[name] = []
        for config in (alternative.device_class.get("spec") or {}).get("config") or ():
            requests = [alternative.full_name]
            by_class[name].append(requests)
            configs.append({"source": "FromClass", "requests": requests, **_opaque(config)})
    return configs


def _opaque(config: Wire) -> Wire:
    return {key: value for key, value in config.items() if key != "requests"}


def _node_selector(placed: Sequence[PlacedDevice], node: str, rules: AllocatorRules) -> Wire | None:
    selectors: list[Wire] = []
    for one in placed:
        scope = one.device.node_scope
        if scope.get("nodeName") is not None or (rules.shares and one.device.wire.get("bindsToNode")):
            merge_selectors(selectors)  # a selector that was read before the name may be one that can't be joined
            return only_node(node)
        if scope.get("nodeSelector") is not None:
            selectors.append(scope["nodeSelector"])
    return merge_selectors(selectors) if selectors else None


_SECONDS_WITHOUT_LEAKS = 1.0
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
        self._matchers = Matchers(self.rules, self.features)
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
            attempt = Attempt(self.context, pools, node)
            attempt.constraints = prepared.check(attempt, self.plan.claims)
            search = Search(self.plan, prepared, attempt)
            if not self._fits(search, pools, node):
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

    def _fits(self, search: Search, pools: Sequence[Pool], node: Wire) -> bool:
        """Search; where that takes too long, search without leaks, which shows whether anything could fit at all.

        Raises:
            AllocatorError: An error ended the search, or it is undecided.
        """
        try:
            return search.run()
        except AllocatorError as error:
            if error.category is not Category.UNDECIDED or not self._only_loses_counters(search.attempt):
                raise
            if self._could_fit(pools, node):
                raise
            search.is_pruned = True
            return False

    def _only_loses_counters(self, attempt: Attempt) -> bool:
        """Return whether all that a leak does is to leave fewer counters, so that it never lets more devices fit."""
        return (
            self.context.rules.leaks
            and not self.context.features.consumable_capacity
            and not any(alternative.is_all for alternative in self.plan.alternatives)
            and all(type(one) is MatchAttribute for claim in attempt.constraints for one in claim)
        )

    def _could_fit(self, pools: Sequence[Pool], node: Wire) -> bool:
        """Return whether the claims might fit if nothing leaked."""
        context = replace(self.context, rules=replace(self.context.rules, leaks=False))
        prepared = PreparedNode(context, pools, node)
        attempt = Attempt(context, pools, node)
        search = Search(self.plan, prepared, attempt, seconds=_SECONDS_WITHOUT_LEAKS)
        try:
            attempt.constraints = prepared.check(attempt, self.plan.claims)
            return search.run() or search.limits_met > 0
        except AllocatorError:
            return True

    def _refuse_unjudged(self) -> None:
        """Raise where the scheduler's behaviour is not known.

        Raises:
            AllocatorError: It is not known for this version with these features.
        """
        rules, features = self.context.rules, self.context.features
        reason = ""
        if rules.minor < Since.SAFE_SHARES and features.consumable_capacity:
            reason = "with DRAConsumableCapacity on, the scheduler of Kubernetes 1.34 crashes; leave the gate off there"
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


# Batch: one recorded allocation problem per line, for programs.

DEFAULT_KUBERNETES = "1.35"


def simulate_batch_line(line: Wire) -> Wire:
    """Solve one problem on each of its nodes.

    Raises:
        InputError: The line does not describe a problem.
    """
    given = line.get("input") if isinstance(line, dict) else None
    if not isinstance(given, dict):
        raise InputError("batch", "a batch line is an object with the key input", hint='{"id": …, "input": {…}}')
    features = Features.from_names(given["features"]) if given.get("features") is not None else None
    allocator = Allocator(
        slices=given.get("slices") or (),
        classes=given.get("classes") or (),
        allocated=given.get("allocated") or (),
        kubernetes=str(line.get("kubernetes") or DEFAULT_KUBERNETES),
        features=features,
    )
    pod = allocator.for_claims(given.get("claims") or ())
    nodes: Wire = {}
    for node in given.get("nodes") or ():
        outcome = pod.allocate(node)
        nodes[node["metadata"]["name"]] = {
            "ok": outcome.ok,
            "results": outcome.results,
            "category": str(outcome.category),
            "error": outcome.error,
        }
    return {"id": line.get("id"), "nodes": nodes}
