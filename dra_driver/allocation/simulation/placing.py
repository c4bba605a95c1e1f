"""Placing: which node and which devices a job gets while the cluster fills up.

In: nodes, slices and what is held; then one job at a time. Out: the first node, in their order, on which a job's claims
fit. Results about nodes are reused from job to job: only a node whose devices were allocated is examined again, and of
several nodes that are equal for a job only the first is tried.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence

from dra_driver.allocation.allocator import Allocator, PodAllocator
from dra_driver.allocation.explaining.explanation import explain
from dra_driver.allocation.explaining.node_kinds import NodeKinds, owners_of, read_by
from dra_driver.allocation.pools.pod_nodes import unsuitable_reason
from dra_driver.model.wire import ClaimWire, Wire

_MAX_ORDERS = 16  # kinds of jobs for which the order of nodes is kept


class Placer:
    """The state of a cluster. It changes only through `hold`."""

    def __init__(self, allocator: Allocator, nodes: Sequence[Wire]) -> None:
        self._allocator = allocator
        self._nodes = nodes
        self._owners = owners_of(allocator.index)
        self._places: dict[str, list[int]] = {}
        for place, node in enumerate(nodes):
            self._places.setdefault(node["metadata"]["name"], []).append(place)
        self._orders: dict[Hashable, _NodeOrder] = {}
        self._reasons: dict[Hashable, str] = {}

    def place(
        self, claims: Sequence[ClaimWire], pod: Wire, allocated: Sequence[ClaimWire] = ()
    ) -> tuple[str, list[Wire]] | None:
        """Return the first node on which claims fit and a result for each; `allocated` bind the pod to their nodes."""
        asked = self._allocator.for_claims(claims)
        for place in self._order(asked, pod, allocated).firsts():
            node = self._nodes[place]
            outcome = asked.allocate(node)
            if outcome.results is not None:
                return node["metadata"]["name"], outcome.results
            if not outcome.category.is_node_local:
                return None  # the scheduler would not try another node either
        return None

    def hold(self, claims: Sequence[ClaimWire]) -> None:
        """Mark the devices of allocated claims as held."""
        pools = {pool for claim in claims for pool in self._allocator.hold(claim)}
        touched = {place for pool in pools for place in self._places.get(self._owners.get(pool[1], ""), ())}
        for order in self._orders.values():
            for place in touched:
                order.refresh(place)
        self._reasons.clear()

    def misfit_reason(self, claims: Sequence[ClaimWire], pod: Wire, allocated: Sequence[ClaimWire] = ()) -> str:
        """Return why claims fit nowhere now. The answer for one job holds for all jobs that request the same."""
        key = repr(([claim.get("spec") for claim in claims], _placement(pod, allocated)))
        reason = self._reasons.get(key)
        if reason is None:
            explanation = explain(
                self._allocator,
                claims,
                self._nodes,
                pod=pod,
                allocated=allocated,
                folds=True,
                names_holders=False,
            )
            reason = explanation.sentence
            if not explanation.aborts:  # the text of an error names its claim, so it can't be reused
                self._reasons[key] = reason
        return reason

    def _order(self, asked: PodAllocator, pod: Wire, allocated: Sequence[ClaimWire]) -> _NodeOrder:
        reads, compared = read_by(asked)
        key = (reads, compared, _placement(pod, allocated))
        order = self._orders.get(key)
        if order is None:
            while len(self._orders) >= _MAX_ORDERS:
                del self._orders[next(iter(self._orders))]
            kinds = NodeKinds(asked, self._owners, names_holders=False)
            order = self._orders[key] = _NodeOrder(kinds, self._nodes, pod, allocated)
        return order


class _NodeOrder:
    """The nodes to which a job may go, grouped by kind, in their order within each kind."""

    def __init__(self, kinds: NodeKinds, nodes: Sequence[Wire], pod: Wire, allocated: Sequence[ClaimWire]) -> None:
        self._kinds = kinds
        self._nodes = nodes
        self._key_of: dict[int, Hashable] = {}
        self._members: dict[Hashable, list[int]] = {}
        for place, node in enumerate(nodes):
            if not unsuitable_reason(pod, node, allocated):
                key = self._key_of[place] = kinds.key(node)
                self._members.setdefault(key, []).append(place)  # appended in rising order, so the list is a heap

    def firsts(self) -> list[int]:
        """Return the first node of each kind, in order; drop nodes whose kind has changed from their old kind."""
        found = []
        for key, members in list(self._members.items()):
            while members and self._key_of[members[0]] != key:
                heapq.heappop(members)
            if members:
                found.append(members[0])
            else:
                del self._members[key]
        return sorted(found)

    def refresh(self, place: int) -> None:
        """Determine the kind of a node again, because its devices may be held now."""
        if place in self._key_of:
            key = self._kinds.key(self._nodes[place])
            if key != self._key_of[place]:
                self._key_of[place] = key
                heapq.heappush(self._members.setdefault(key, []), place)


def _placement(pod: Wire, allocated: Sequence[ClaimWire]) -> str:
    """Return a text of everything that decides to which nodes a pod may go, for comparison."""
    spec = pod.get("spec") or {}
    bound = [claim["status"]["allocation"].get("nodeSelector") for claim in allocated]
    return repr([*(spec.get(name) for name in ("nodeName", "tolerations", "nodeSelector", "affinity")), bound])
