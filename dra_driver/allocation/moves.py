"""Moves: the fewest running jobs that would have to go elsewhere so that a waiting job fits.

In: a cluster in which a job fits nowhere, and the jobs that run. Out: a `Rearrangement`: the node on which the job
would then fit, and where each moved job would go; None if none was found. The allocator judges every step: whether the
job fits without the moved jobs, and whether each of these fits elsewhere once the job is there. Few moves are tried
before many, and among equally many the nodes and jobs in their order. Only choices that can make room are tried: all
jobs of some GPUs, or some jobs of one GPU (jobs that share counters, or a device). `MAX_MOVES` and `MAX_TRIES` bound
the work.

Nothing is moved here: whoever wants the moves deletes the pods, and their controllers create them again. Jobs of
DaemonSets, jobs that share a claim with another job, and claims that none of these jobs holds stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.pools import DeviceId
from dra_driver.allocation.simulation import Job, Placer, Timeline, devices_of, stays_on_drain
from dra_driver.allocation.usage import claim_name, unsuitable_reason
from dra_driver.base.wire import ClaimWire, ClassWire, SliceWire, Wire

MAX_MOVES = 8
MAX_TRIES = 400
Running = Mapping[str, tuple[Job, str, list[ClaimWire]]]  # by name: the job, its node, its allocated claims


@dataclass(frozen=True, slots=True)
class JobMove:
    """One job that would go elsewhere, with the devices that it would leave and those that it would get."""

    job: str
    source: str
    target: str
    leaves: tuple[str, ...]
    gets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """The moves after which a job fits on `node`, and the devices that it would get there."""

    job: str
    node: str
    devices: tuple[str, ...]
    moves: tuple[JobMove, ...]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster for which the allocator decides. `held` are the claims of all jobs, and those of no job."""

    nodes: Sequence[Wire]
    slices: Sequence[SliceWire]
    classes: Sequence[ClassWire]
    held: Sequence[ClaimWire]
    kubernetes: str
    gates: Mapping[str, bool]

    def counter_sets(self) -> dict[DeviceId, set[Hashable]]:
        """Return the counter sets from which devices take, each with its pool."""
        return {
            (spec["driver"], spec["pool"]["name"], device["name"]): {
                (spec["driver"], spec["pool"]["name"], taken["counterSet"]) for taken in device["consumesCounters"]
            }
            for spec in (slice_["spec"] for slice_ in self.slices)
            for device in spec.get("devices") or ()
            if device.get("consumesCounters")
        }

    def placer(self, nodes: Sequence[Wire], without: frozenset[str]) -> Placer:
        """Return a placer for some of the nodes, as if the claims named in `without` held nothing."""
        names = {node["metadata"]["name"] for node in nodes}
        allocator = Allocator(
            slices=[slice_ for slice_ in self.slices if slice_["spec"].get("nodeName") in {None, "", *names}],
            classes=self.classes,
            allocated=[claim for claim in self.held if claim_name(claim) not in without],
            kubernetes=self.kubernetes,
            gates=self.gates,
        )
        return Placer(allocator, nodes)


def moves_for_waiting(timeline: Timeline) -> Iterator[tuple[str, Rearrangement | None]]:
    """Yield the name of each job that waits now, with the fewest moves that make room for this job."""
    held = {claim_name(claim): claim for claim in timeline.allocated()}
    state = ClusterState(
        nodes=timeline.nodes,
        slices=timeline.slices,
        classes=timeline.classes,
        held=list(held.values()),
        kubernetes=timeline.kubernetes,
        gates=timeline.gates,
    )
    for job in timeline.queue:
        known = [held[name] for name in map(claim_name, job.claims) if name in held]
        yield job.name, None if job.blocked else fewest_moves(state, timeline.running, job, known)


def fewest_moves(
    state: ClusterState,
    running: Running,
    job: Job,
    allocated: Sequence[ClaimWire] = (),
    *,
    max_tries: int = MAX_TRIES,
) -> Rearrangement | None:
    """Return the fewest moves that make room for a job that fits nowhere, None if none are found.

    `allocated` are those of the job's claims that hold devices already.
    """
    movable = _movable(running)
    rooms = []
    for node in islice(state.nodes, max_tries):
        here = [one for one in movable if one[1] == node["metadata"]["name"]]
        if not here or unsuitable_reason(job.pod or {}, node, allocated):
            continue
        if _fits_without(state, node, here, job, allocated):
            rooms.append((node, _groups(state, here)))
    choices = (
        (node, chosen)
        for count in range(1, MAX_MOVES + 1)
        for node, groups in rooms
        for chosen in _choices(groups, count)
    )
    tried = (_try(state, node, chosen, job, allocated) for node, chosen in islice(choices, max_tries))
    return next((found for found in tried if found is not None), None)


_Placed = tuple[Job, str, list[ClaimWire]]
_Group = list[_Placed]  # jobs that share counters or a device with each other


def _movable(running: Running) -> list[_Placed]:
    """Return the jobs that may go elsewhere."""
    users = Counter(claim_name(claim) for _, _, claims in running.values() for claim in claims)
    return [
        placed
        for placed in running.values()
        if not stays_on_drain(placed[0].pod or {}) and all(users[claim_name(claim)] == 1 for claim in placed[2])
    ]


def _groups(state: ClusterState, jobs: Sequence[_Placed]) -> list[_Group]:
    """Group the jobs of a node by the counter sets or devices that they share, usually those of one GPU."""
    sets = state.counter_sets()
    groups: list[tuple[set[Hashable], _Group]] = []
    for one in jobs:
        units: set[Hashable] = set()
        for claim in one[2]:
            for result in claim["status"]["allocation"]["devices"].get("results") or ():
                device = (result["driver"], result["pool"], result["device"])
                units |= sets.get(device) or {device}
        met = [group for group in groups if group[0] & units]
        groups = [group for group in groups if not group[0] & units]
        joined = [job for _, members in met for job in members]
        groups.append((units.union(*(taken for taken, _ in met)), [*joined, one]))
    return [members for _, members in groups]


def _choices(groups: Sequence[_Group], count: int) -> Iterator[Sequence[_Placed]]:
    """Yield sets of `count` jobs: some of one group, or all of several groups."""
    for group in groups:
        yield from combinations(group, count)
    for number in range(2, count + 1):
        for several in combinations([group for group in groups if len(group) < count], number):
            if sum(map(len, several)) == count:
                yield [one for group in several for one in group]


def _fits_without(
    state: ClusterState, node: Wire, chosen: Sequence[_Placed], job: Job, allocated: Sequence[ClaimWire]
) -> tuple[str, list[Wire]] | None:
    """Return the node and the results that a job would get if the chosen jobs were not there."""
    moved = frozenset(claim_name(claim) for _, _, claims in chosen for claim in claims)
    return state.placer([node], moved).place(_unallocated(job, allocated), job.pod or {}, allocated)


def _unallocated(job: Job, allocated: Sequence[ClaimWire]) -> list[ClaimWire]:
    known = {claim_name(claim) for claim in allocated}
    return [claim for claim in job.claims if claim_name(claim) not in known]


def _try(
    state: ClusterState, node: Wire, chosen: Sequence[_Placed], job: Job, allocated: Sequence[ClaimWire]
) -> Rearrangement | None:
    """Return the rearrangement if the job fits on the node without the chosen jobs, and they fit elsewhere with it."""
    found = _fits_without(state, node, chosen, job, allocated)
    if found is None:
        return None
    made = _allocated(_unallocated(job, allocated), found[1])
    moved = frozenset(claim_name(claim) for _, _, claims in chosen for claim in claims)
    placer = state.placer(state.nodes, moved)
    placer.hold(made)
    moves = tuple(_moves(placer, chosen))
    if len(moves) < len(chosen):
        return None
    return Rearrangement(job.name, found[0], devices_of([*allocated, *made]), moves)


def _moves(placer: Placer, chosen: Sequence[_Placed]) -> Iterator[JobMove]:
    """Place the moved jobs one after the other; stop at the first one that fits nowhere."""
    for job, source, claims in chosen:
        found = placer.place(job.claims, job.pod or {})
        if found is None:
            return
        made = _allocated(job.claims, found[1])
        placer.hold(made)
        yield JobMove(job.name, source, found[0], devices_of(claims), devices_of(made))


def _allocated(claims: Sequence[ClaimWire], results: Sequence[Wire]) -> list[ClaimWire]:
    return [{**claim, "status": {"allocation": result}} for claim, result in zip(claims, results, strict=True)]
