"""A timeline: pods come and go, nodes are drained, devices are lost, and the allocator decides after each event.

In: the objects of a cluster and a list of events. Out: an `EventOutcome` per event: which jobs were placed, which wait
and why, and how full the cluster is. Waiting pods are tried in their order of arrival, on nodes in their order, and the
first node that fits is taken (the real scheduler scores nodes, which this model leaves out). Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from dra_driver.allocation.allocator import Allocator, PodAllocator
from dra_driver.allocation.explanation import explain
from dra_driver.allocation.funnel import NodeKinds, owners_of, read_by
from dra_driver.allocation.usage import Usage, claim_name, unsuitable_reason, usage_of
from dra_driver.base.errors import InputError
from dra_driver.base.wire import ClaimWire, ClassWire, SliceWire, Wire

# Events of a simulation, and their outcomes.

KINDS = ("arrive", "leave", "drain", "undrain", "lose", "restore", "replace")


@dataclass(frozen=True, slots=True)
class Job:
    """Something that requests devices: a pod with its claims, or claims alone.

    Several jobs may have the same claim (by namespace and name): it is allocated once, for all of them.
    """

    name: str
    claims: tuple[ClaimWire, ...]
    pod: Wire | None = None
    blocked: str = ""  # why it can't be scheduled even if all devices are free


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event. `kind` is one of `KINDS`; `target` names a job, a node, or a node/device."""

    kind: str
    target: str
    label: str = ""
    jobs: tuple[Job, ...] = ()
    slices: tuple[SliceWire, ...] = ()

    @property
    def sentence(self) -> str:
        """The event as a sentence."""
        return self.label or f"{self.kind} {self.target}"


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """One job that was placed."""

    job: str
    node: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """One job that could not be placed, and why."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """The effect of one event. `evicted` are the jobs that lost their node or a device."""

    event: TimelineEvent
    placed: tuple[PlacedJob, ...]
    waiting: tuple[WaitingJob, ...]
    evicted: tuple[str, ...]
    usage: Usage


def jobs_of_claims(claims: Sequence[ClaimWire]) -> tuple[Job, ...]:
    """Make a job of each claim."""
    return tuple(Job(claim_name(claim), (claim,)) for claim in claims)


# Placing: which node and which devices a job gets while the cluster fills up.

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


_MIRROR = "kubernetes.io/config.mirror"  # the annotation of a static pod's mirror pod in the API server


@dataclass(slots=True)
class Timeline:
    """The present state of the cluster. `held` are claims of other workloads, which never leave."""

    nodes: list[Wire]
    slices: list[SliceWire]
    classes: list[ClassWire]
    kubernetes: str
    gates: Mapping[str, bool] = field(default_factory=dict)
    held: list[ClaimWire] = field(default_factory=list)
    running: dict[str, tuple[Job, str, list[ClaimWire]]] = field(default_factory=dict)
    queue: list[Job] = field(default_factory=list)
    lost: dict[tuple[str, str], tuple[str, Wire]] = field(default_factory=dict)
    _known: Placer | None = None  # the placer for the present state
    _known_claims: dict[str, ClaimWire] = field(default_factory=dict)  # those that hold devices, by name

    def apply(self, event: TimelineEvent) -> EventOutcome:
        """Apply one event, then try to place every waiting job.

        Raises:
            InputError: The event names something that does not exist.
        """
        evicted = self._change(event)
        self._known = None
        self._known_claims = {claim_name(claim): claim for claim in self.allocated()}
        placed, queue = [], []
        for job in self.queue:
            found = self._try(job)
            if found is None:
                queue.append(job)
            else:
                placed.append(found)
        self.queue = queue
        waiting = tuple(WaitingJob(job.name, self._why(job)) for job in self.queue)
        usage = usage_of(self.slices, self.allocated())
        return EventOutcome(event, tuple(placed), waiting, tuple(evicted), usage)

    def _change(self, event: TimelineEvent) -> list[str]:
        """Change the cluster as the event says; return the names of the evicted jobs."""
        match event.kind:
            case "arrive":
                self.queue += event.jobs
                return []
            case "leave":
                if event.target not in self.running and all(job.name != event.target for job in self.queue):
                    raise InputError("event", f"leave {event.target}: there is no such pod or claim")
                self.running.pop(event.target, None)
                self.queue = [job for job in self.queue if job.name != event.target]
                return []
            case "drain":
                self._node(event.target).setdefault("spec", {})["unschedulable"] = True
                here = {name for name, (job, node, _) in self.running.items() if node == event.target}
                return self._evict({name for name in here if not stays_on_drain(self.running[name][0].pod or {})})
            case "undrain":
                self._node(event.target).get("spec", {}).pop("unschedulable", None)
                return []
            case "lose":
                return self._lose(event.target)
            case "restore":
                self._restore(event.target)
                return []
            case "replace":
                return self._replace(event.target, event.slices)
            case _:
                raise InputError("event", f"unknown event {event.kind!r}", hint=f"known events are {', '.join(KINDS)}")

    def _node(self, name: str) -> Wire:
        for node in self.nodes:
            if node["metadata"]["name"] == name:
                return node
        known = sorted(str(node["metadata"]["name"]) for node in self.nodes)
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known[:8])}"
        raise InputError("event", f"there is no node {name}", hint=hint)

    def _lose(self, target: str) -> list[str]:
        """Take a device, named node/device, out of its slice and evict the jobs that hold it."""
        pool, _, name = target.rpartition("/")
        for slice_ in self.slices:
            spec = slice_["spec"]
            if pool not in {spec["pool"]["name"], spec.get("nodeName")}:
                continue
            for device in spec.get("devices") or ():
                if device["name"] == name:
                    spec["devices"] = [other for other in spec["devices"] if other["name"] != name]
                    self.lost[pool, name] = (spec["driver"], device)
                    return self._evict(self._holders(spec["driver"], spec["pool"]["name"], {name}))
        raise InputError("event", f"lose {target}: there is no such device", hint="write it as NODE/DEVICE")

    def _restore(self, target: str) -> None:
        pool, _, name = target.rpartition("/")
        if (pool, name) not in self.lost:
            raise InputError("event", f"restore {target}: it was not lost")
        driver, device = self.lost.pop((pool, name))
        for slice_ in self.slices:
            spec = slice_["spec"]
            is_of_place = pool in {spec["pool"]["name"], spec.get("nodeName")}
            if spec["driver"] == driver and is_of_place and "devices" in spec:
                spec["devices"] = [*spec["devices"], device]
                return

    def _replace(self, node: str, slices: Sequence[SliceWire]) -> list[str]:
        """Replace the devices of a node, as a change of MIG geometry does; holders of lost devices are evicted."""
        self._node(node)
        gone = [slice_ for slice_ in self.slices if slice_["spec"].get("nodeName") == node]
        kept = {(slice_["spec"]["driver"], d["name"]) for slice_ in slices for d in slice_["spec"].get("devices") or ()}
        self.slices = [slice_ for slice_ in self.slices if slice_["spec"].get("nodeName") != node] + list(slices)
        evicted: set[str] = set()
        for one in gone:
            driver = one["spec"]["driver"]
            names = {device["name"] for device in one["spec"].get("devices") or ()}
            names = {name for name in names if (driver, name) not in kept}
            evicted |= self._holders(driver, one["spec"]["pool"]["name"], names)
        return self._evict(evicted)

    def _holders(self, driver: str, pool: str, devices: set[str]) -> set[str]:
        return {
            name
            for name, (_, _, claims) in self.running.items()
            for claim in claims
            for result in claim["status"]["allocation"]["devices"].get("results") or ()
            if (result["driver"], result["pool"]) == (driver, pool) and result["device"] in devices
        }

    def _evict(self, names: set[str]) -> list[str]:
        """Move jobs back to the queue, ahead of all jobs that came later."""
        evicted = [job for name, (job, _, _) in self.running.items() if name in names]
        for job in evicted:
            del self.running[job.name]
        self.queue = [job for job in evicted if not _is_ending(job.pod or {})] + self.queue
        return [job.name for job in evicted]

    def allocated(self) -> list[ClaimWire]:
        """Return all claims that hold devices now."""
        claims = [*self.held, *(claim for _, _, claims in self.running.values() for claim in claims)]
        return list({claim_name(claim): claim for claim in claims}.values())

    def _placer(self) -> Placer:
        if self._known is None:
            allocator = Allocator(
                slices=self.slices,
                classes=self.classes,
                allocated=self.allocated(),
                kubernetes=self.kubernetes,
                gates=self.gates,
            )
            self._known = Placer(allocator, self.nodes)
        return self._known

    def _try(self, job: Job) -> PlacedJob | None:
        if job.blocked:
            return None
        waiting, allocated = self._split(job)
        found = self._placer().place(waiting, job.pod or {}, allocated)
        if found is None:
            return None
        node, results = found
        made = [{**claim, "status": {"allocation": result}} for claim, result in zip(waiting, results, strict=True)]
        claims = [*allocated, *made]
        self.running[job.name] = (job, node, claims)
        self._placer().hold(made)
        self._known_claims.update((claim_name(claim), claim) for claim in made)
        return PlacedJob(job.name, node, devices_of(claims))

    def _why(self, job: Job) -> str:
        if job.blocked:
            return job.blocked
        waiting, allocated = self._split(job)
        return self._placer().misfit_reason(waiting, job.pod or {}, allocated)

    def _split(self, job: Job) -> tuple[list[ClaimWire], list[ClaimWire]]:
        """Return a job's claims that hold nothing yet, and those that do, because another job has them too."""
        known = [self._known_claims.get(claim_name(claim)) for claim in job.claims]
        waiting = [claim for claim, other in zip(job.claims, known, strict=True) if other is None]
        return waiting, [claim for claim in known if claim is not None]


def devices_of(claims: Sequence[ClaimWire]) -> tuple[str, ...]:
    """Return the names of the devices that allocated claims hold."""
    allocations = [claim["status"]["allocation"].get("devices") or {} for claim in claims]
    return tuple(result["device"] for devices in allocations for result in devices.get("results") or ())


def _is_ending(pod: Wire) -> bool:
    """Return whether a pod is being deleted, so that it needs no other place."""
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def stays_on_drain(pod: Wire) -> bool:
    """Return whether a drain leaves a pod where it is, as `kubectl drain --ignore-daemonsets` does."""
    metadata = pod.get("metadata") or {}
    owners = [owner.get("kind") for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    return "DaemonSet" in owners or _MIRROR in (metadata.get("annotations") or {})
