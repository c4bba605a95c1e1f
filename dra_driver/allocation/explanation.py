"""Explanations: why a pod's claims fit on a node or do not, with the sentence that matters most first.

In: an allocator's view of a cluster, a pod's claims, nodes. Out: a `NodeExplanation` per node and an
`AllocationExplanation` of the whole: verdict, sentence, funnels, and what would help. The verdict is always the
allocator's own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from dra_driver.allocation.allocator import Allocator, PodAllocator
from dra_driver.allocation.funnel import Funnel, FunnelStage, NodeKinds, funnels_on, owners_of
from dra_driver.allocation.pools import Pool
from dra_driver.allocation.rules import FILTER_TIMEOUT_SECONDS, AllocatorError, Category, NodeOutcome
from dra_driver.allocation.usage import claim_name, unsuitable_reason
from dra_driver.base.wire import ClaimWire, Wire

# Sentences that explain to a reader why a claim fits on a node or does not.


def misfit_text(outcome: NodeOutcome, funnels: Sequence[Funnel], pools: Sequence[Pool]) -> str:
    """Return the sentence for a node on which the claims do not fit."""
    if outcome.category in {Category.CEL_RUNTIME_ERROR, Category.CEL_COMPILE_ERROR}:
        failed = next((loss.device for funnel in funnels for loss in funnel.errors if loss.reason == outcome.error), "")
        where = f" on device {failed}" if failed and outcome.category is Category.CEL_RUNTIME_ERROR else ""
        return f"selector error{where}: {outcome.error}; this ends the pod's scheduling on every node"
    if outcome.error is not None and outcome.category is not Category.INVALID_POOL:
        return f"{outcome.error}; this ends the pod's scheduling on every node"
    short = [funnel for funnel in funnels if funnel.is_short and not _has_other_choice(funnel, funnels)]
    if short:
        return "; ".join(_shortages(short)[:3])
    bad = next((note for note in pool_notes(pools)), "")
    if outcome.category is Category.INVALID_POOL and bad:
        return bad
    if not funnels:
        return "no devices are requested"
    return "each request could be met alone, but not all of them together"


def _has_other_choice(one: Funnel, funnels: Sequence[Funnel]) -> bool:
    """Return whether another alternative of the same request has enough devices."""
    request = one.request.partition("/")[0]
    return any(o.claim == one.claim and o.request.partition("/")[0] == request and not o.is_short for o in funnels)


def _shortages(short: Sequence[Funnel]) -> list[str]:
    """Return what requests lack; those that lack the same thing share a sentence."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in short:
        wanted = "all matching devices" if one.wants is None else f"{one.wants}"
        alike.setdefault((wanted, _shortage(one)), []).append(one.request)
    return [
        f"request {names[0]} wants {wanted}, {what}"
        if len(names) == 1
        else f"requests {', '.join(names)} want {wanted} each, {what}"
        for (wanted, what), names in alike.items()
    ]


def _shortage(one: Funnel) -> str:
    stage = one.bottleneck
    if not one.devices:
        return "but no device is published here"
    head = f"{one.fits} of {one.devices} device{'' if one.devices == 1 else 's'} can be had"
    if stage is None:
        return head
    late = [other for other in one.stages if other.lost and other.left < stage.left]
    worst = max(late, key=lambda other: len(other.lost), default=None)
    then = f"; of the {stage.left} left, {_loss(worst)}" if worst else ""
    return f"{head}: {_loss(stage)}{then}"


def _loss(stage: FunnelStage) -> str:
    """Return why a stage lost devices: the common reason, or the first reason and the number of the others."""
    reasons = list(dict.fromkeys(loss.reason for loss in stage.lost))
    if stage.name == "in use":
        holders = sorted({loss.reason.removeprefix("held by ") for loss in stage.lost})
        named = ", ".join(holders[:4]) + (f" and {len(holders) - 4} more" if len(holders) > 4 else "")
        verb = "matching device is" if len(stage.lost) == 1 else "matching devices are"
        return f"{len(stage.lost)} {verb} held by {named}"
    if len(reasons) == 1:
        count = len(stage.lost)
        return f"{stage.name}: {reasons[0]} ({count} device{'' if count == 1 else 's'})"
    first = stage.lost[0]
    return f"{stage.name}: {first.device}: {first.reason} (and {len(stage.lost) - 1} more)"


def held_text(allocated: Sequence[ClaimWire]) -> str:
    """Return the devices that a pod's claims hold already."""
    held = [
        f"{result['device']}, which claim {claim_name(claim)} holds already"
        for claim in allocated
        for result in claim["status"]["allocation"].get("devices", {}).get("results", ())
    ]
    return "; ".join(held)


def choice_text(outcome: NodeOutcome, shared: str = "") -> str:
    """Return which devices the requests get."""
    names = [
        f"{one['device']} for {one['request']}"
        for result in outcome.results or []
        for one in result["devices"].get("results", ())
    ]
    given = [*([", ".join(names)] if names else []), *([shared] if shared else [])]
    return "; ".join(given) if given else "no devices are requested"


def pool_notes(pools: Sequence[Pool]) -> tuple[str, ...]:
    """Return what keeps whole pools from being used."""
    notes = []
    for pool in pools:
        if pool.incomplete:
            notes.append(f"pool {pool.name} is incomplete: {pool.seen[0]} of {pool.seen[1]} slices")
        elif pool.invalid:
            notes.append(f"pool {pool.name} is invalid: {pool.invalid}")
    return tuple(notes)


def group_notes(asked: PodAllocator, pools: Sequence[Pool]) -> tuple[str, ...]:
    """Return notes about compatibility groups, if they influenced the outcome."""
    if asked.context.has_groups and any(slice_.has_groups for pool in pools for slice_ in pool.slices):
        return ("devices that draw from one counter set need a compatibility group in common",)
    hidden = asked.allocator.index.hidden
    ignored = "its slices with compatibilityGroups are ignored while DRADeviceCompatibilityGroups is off"
    return tuple(f"pool {pool.name}: {ignored}" for pool in pools if pool.id in hidden)


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """One node, and the nodes (`like`) for which the same holds with their own names.

    `skipped` says why the node is never checked for devices; then there is no outcome.
    """

    node: str
    sentence: str
    outcome: NodeOutcome | None
    funnels: tuple[Funnel, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str = ""
    like: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the claims fit on this node."""
        return self.outcome is not None and self.outcome.ok

    @property
    def count(self) -> int:
        """The number of nodes to which this explanation applies."""
        return 1 + len(self.like)


@dataclass(frozen=True, slots=True)
class AllocationExplanation:
    """All nodes, equal ones together, in the order in which the first of each group was given.

    `sentence` is the one that matters most; `aborts` says that an error ends the pod's scheduling.
    """

    sentence: str
    nodes: tuple[NodeExplanation, ...]
    aborts: bool
    kubernetes: str
    exact: bool

    @property
    def ok(self) -> bool:
        """Whether the pod can be scheduled on some node."""
        return any(node.ok for node in self.nodes) and not self.aborts


def explain(
    allocator: Allocator,
    claims: Sequence[ClaimWire],
    nodes: Iterable[Wire],
    *,
    pod: Wire | None = None,
    allocated: Sequence[ClaimWire] = (),
    newer: Allocator | None = None,
    folds: bool = False,
    names_holders: bool = True,
) -> AllocationExplanation:
    """Explain one pod's claims on all nodes.

    Args:
        allocator: the state of the cluster.
        claims: the claims of the pod.
        nodes: the nodes, in their order.
        pod: the pod, if there is one: its selectors, affinity and tolerations may keep it from nodes.
        allocated: claims of the pod that hold devices already, which bind it to the nodes that reach them.
        newer: a later Kubernetes version, to report where it decides otherwise.
        folds: whether only the first of equal nodes is judged; the names of the others are then in its `like`.
        names_holders: whether nodes count as different if other claims hold their devices; if not, the explanation of
            the first node may name other holders than those of nodes like it.
    """
    asked = allocator.for_claims(claims)
    other = newer.for_claims(claims) if newer is not None else None
    owners = owners_of(allocator.index)
    shared = held_text(allocated)
    kinds = [NodeKinds(asked, owners, names_holders=names_holders)]
    if other is not None:
        kinds.append(NodeKinds(other, owners, names_holders=names_holders, like=kinds[0]))
    explained = tuple(
        replace(_explain_node(asked, other, first, skipped, shared), like=tuple(names))
        for first, skipped, names in _kinds(kinds if folds else [], nodes, pod, allocated)
    )
    errors = [n for n in explained if n.outcome is not None and not n.outcome.category.is_node_local]
    rules = allocator.rules
    return AllocationExplanation(_overall(explained, errors), explained, bool(errors), rules.kubernetes, rules.exact)


def _kinds(
    kinds: Sequence[NodeKinds], nodes: Iterable[Wire], pod: Wire | None, allocated: Sequence[ClaimWire]
) -> Iterable[tuple[Wire, str, list[str]]]:
    """Group equal nodes: the first node, why it is skipped, and the names of the others.

    Without `kinds` each node forms its own group.
    """
    found: dict[Hashable, tuple[Wire, str, list[str]]] = {}
    for node in nodes:
        skipped = unsuitable_reason(pod, node, allocated) if pod is not None else ""
        key: Hashable = len(found)
        if kinds:
            key = (skipped, *([] if skipped else [kind.key(node) for kind in kinds]))
        known = found.get(key)
        if known is None:
            found[key] = node, skipped, []
        else:
            known[2].append(node["metadata"]["name"])
    return found.values()


def _explain_node(
    asked: PodAllocator, newer: PodAllocator | None, node: Wire, skipped: str, shared: str
) -> NodeExplanation:
    name = node["metadata"]["name"]
    if skipped:
        return NodeExplanation(name, f"not considered: {skipped}", None, skipped=skipped)
    outcome = asked.allocate(node)
    if outcome.ok:
        sentence = f"fits: {choice_text(outcome, shared)}"
        return NodeExplanation(name, sentence, outcome, notes=_notes(asked, newer, node, outcome))
    pools, funnels = _pools_and_funnels(asked, node)
    notes = (*pool_notes(pools), *group_notes(asked, pools), *_notes(asked, newer, node, outcome))
    return NodeExplanation(name, misfit_text(outcome, funnels, pools), outcome, funnels, notes)


def _pools_and_funnels(asked: PodAllocator, node: Wire) -> tuple[list[Pool], tuple[Funnel, ...]]:
    """Return the pools of a node, and a funnel for every valid request; both are empty if a pool can't be read."""
    try:
        pools = asked.pools(node)
    except AllocatorError:
        return [], ()
    return pools, funnels_on(asked.context, pools, node)


def _notes(asked: PodAllocator, newer: PodAllocator | None, node: Wire, outcome: NodeOutcome) -> tuple[str, ...]:
    notes = []
    here = asked.allocator.rules.kubernetes
    if newer is not None:
        later = newer.allocate(node)
        version = newer.allocator.rules.kubernetes
        if later.ok and not outcome.ok:
            notes.append(f"Kubernetes {here} refuses this; {version} allocates {choice_text(later)}")
        elif outcome.ok and not later.ok:
            notes.append(f"Kubernetes {here} allocates this; {version} refuses it")
        elif outcome.ok and choice_text(later) != choice_text(outcome):
            notes.append(f"Kubernetes {version} chooses differently: {choice_text(later)}")
    if outcome.others_possible:
        notes.append("the order of pools is not fixed in this version: other outcomes are possible")
    if outcome.times_out or outcome.is_lower_bound:
        would, about = ("would", "about") if outcome.times_out else ("may", "more than")
        limit = f"{FILTER_TIMEOUT_SECONDS:g} s"
        notes.append(f"the scheduler {would} give up after {limit}: it tries {about} {outcome.steps} placements")
    return tuple(notes)


def _overall(nodes: Sequence[NodeExplanation], errors: Sequence[NodeExplanation]) -> str:
    fitting = [node for node in nodes if node.ok]
    total = _count(nodes)
    if errors:
        word = "is" if _count(errors) == _count([n for n in nodes if not n.skipped]) else "may be"
        return f"scheduling {word} blocked: {errors[0].node}: {errors[0].sentence}"
    if fitting:
        where = f"{_count(fitting)} of {total} nodes; {fitting[0].node}" if total > 1 else fitting[0].node
        return f"fits on {where}: {fitting[0].sentence.removeprefix('fits: ')}"
    if not nodes:
        return "there are no nodes to look at"
    best = max(nodes, key=lambda n: (n.outcome is not None, sum(f.fits for f in n.funnels)))
    if total == 1:
        return f"does not fit on {best.node}: {best.sentence}"
    return f"fits on none of {total} nodes; nearest is {best.node}: {best.sentence}"


def _count(nodes: Sequence[NodeExplanation]) -> int:
    return sum(node.count for node in nodes)
