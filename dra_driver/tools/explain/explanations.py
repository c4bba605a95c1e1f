"""Subjects: the pods and claims that `explain` is asked about.

In: a world and the arguments of the command. Out: `ExplainedSubject`s: pods with their claims, or claims. A pod that
runs, has ended, waits for its kubelet or refers to something that is missing already has an `answer`; all others are
explained by the allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.explanation import AllocationExplanation, NodeExplanation, explain
from dra_driver.allocation.funnel import FEW_NODES
from dra_driver.allocation.simulation import devices_of
from dra_driver.allocation.usage import claim_name
from dra_driver.base.errors import ApiError, ExitCode, InputError, UsageError
from dra_driver.base.versions import Since
from dra_driver.base.wire import ClaimWire, Wire
from dra_driver.tools.world.access import (
    OWN_VIEW,
    DocumentKind,
    NoProgress,
    OutputDocument,
    ProgressLines,
    Workload,
    counted,
    plain,
)
from dra_driver.tools.world.fields import nearest
from dra_driver.tools.world.pod_status import container_trouble, has_ended, is_bound, is_prepared, scheduler_message
from dra_driver.tools.world.workloads import (
    NOT_SEEN,
    SHORT_KINDS,
    PodClaims,
    allocation_of,
    extended_resources,
    ignored_resources,
    is_offered,
    pod_claims,
    pod_name,
    resource_notes,
    unserved,
)
from dra_driver.tools.world.world import AppliedRules, World, is_certain, unknown_reason

CLAIM_WORDS = frozenset({"claim", "claims", "resourceclaim", "resourceclaims"})
POD_WORDS = frozenset({"pod", "pods", "po"})


Selected = Callable[[Wire], bool]  # whether an object is one of those that are asked about
LastEvent = Callable[[str, str], str]  # of a pod, by namespace and name; "" if there is none


@dataclass(frozen=True, slots=True)
class ExplainedSubject:
    """One pod or claim to explain.

    `claims` are those without an allocation; those in `allocated` bind the pod to their nodes. If `answer` is set, no
    allocator is needed: `ok` is then the verdict, unless `is_known` is False.
    """

    name: str
    pod: Wire | None = None
    claims: tuple[Wire, ...] = ()
    allocated: tuple[Wire, ...] = ()
    notes: tuple[str, ...] = ()
    answer: str = ""
    ok: bool = False
    is_known: bool = True


def subjects_of(
    world: World, words: Sequence[str], namespace: str, last_event: LastEvent, selected: Selected
) -> list[ExplainedSubject]:
    """Return what is asked about: the object KIND NAME, or all `selected` objects of one KIND or of all kinds.

    With the namespace "", the object is the only one of its name in any namespace. Raises: InputError, UsageError.
    """
    if len(words) < 2:
        kinds = _kinds(words[0]) if words else {"Pod", "ResourceClaim"}
        return list(_everything(world, kinds, last_event, selected))
    kind, name = words[0].lower(), words[1]
    if kind in CLAIM_WORDS:
        return [_claim(world, _find(world, "ResourceClaim", "claim", namespace, name))]
    if kind in POD_WORDS:
        return [_pod(world, _find(world, "Pod", "pod", namespace, name), last_event)]
    found = _workloads(world, SHORT_KINDS.get(kind, kind), namespace, name)
    pods = [_pod(world, pod, last_event) for one in found for pod in one.pods]
    return pods + [ExplainedSubject(f"{kind} {name}", answer=one.idle, ok=True) for one in found if one.idle]


def is_one_object(words: Sequence[str]) -> bool:
    """Return whether one claim or pod is asked about; a workload may have any number of pods."""
    return len(words) == 2 and words[0].lower() in CLAIM_WORDS | POD_WORDS


def _kinds(word: str) -> set[str]:
    """Return the kind that is meant by KIND without a name. Raises: UsageError."""
    kinds = {"ResourceClaim": CLAIM_WORDS, "Pod": POD_WORDS}
    found = {kind for kind, words in kinds.items() if word.lower() in words}
    if not found:
        raise UsageError("target", f"explain {word} needs a name; only pods and claims can be explained without one")
    return found


def _everything(world: World, kinds: set[str], last_event: LastEvent, selected: Selected) -> Iterator[ExplainedSubject]:
    """Yield the pods, and the claims that no pod has."""
    used: set[str] = set()
    for pod in filter(selected, world.of("Pod") if "Pod" in kinds else ()):
        subject = _pod(world, pod, last_event)
        used.update(claim_name(claim) for claim in (*subject.claims, *subject.allocated))
        yield subject
    for claim in filter(selected, world.of("ResourceClaim") if "ResourceClaim" in kinds else ()):
        if claim_name(claim) not in used:
            yield _claim(world, claim)
    for sentence in world.idle:
        yield ExplainedSubject(sentence, answer=sentence, ok=True)


def _find(world: World, kind: str, word: str, namespace: str, name: str) -> Wire:
    if not namespace:
        named = (one["metadata"] for one in world.of(kind) if one["metadata"]["name"] == name)
        namespace = _sole_namespace((one.get("namespace", "") for one in named), word, name)
    found = world.find(kind, namespace, name)
    if found is not None:
        return found
    if world.is_unseen(kind, namespace):
        text = f"it is not known whether there is a {word} {namespace}/{name}: its {kind}s may not be read"
        raise ApiError("not-seen", text, hint=f"bind ClusterRole {OWN_VIEW} in namespace {namespace}")
    where = {one["metadata"]["name"]: one["metadata"].get("namespace") or namespace for one in world.of(kind)}
    near = get_close_matches(name, where, n=1)
    hint = "-n sets the namespace, -f reads a file"
    if near:
        hint = f"did you mean {_full_name(where[near[0]], near[0])}? {hint}"
    raise InputError("missing", f"there is no {word} {_full_name(namespace, name)}", hint=hint)


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _sole_namespace(found: Iterable[str], word: str, name: str) -> str:
    """Return the only one of the namespaces in which an object was found, "" if there is none. Raises: UsageError."""
    namespaces = sorted({one or "default" for one in found})
    if len(namespaces) > 1:
        raise UsageError("target", f"{word} {name} is in the namespaces {', '.join(namespaces)}: choose one with -n")
    return namespaces[0] if namespaces else ""


def _workloads(world: World, kind: str, namespace: str, name: str) -> list[Workload]:
    """Return the templates of a workload with their pods."""
    plain = kind.partition(".")[0]  # kubectl accepts deployments.apps as well
    words = {plain, plain.removesuffix("s"), SHORT_KINDS.get(plain, "")}
    wanted = [one for one in world.workloads if one.template.name == name and one.template.kind.lower() in words]
    namespace = namespace or _sole_namespace((one.template.namespace for one in wanted), kind, name)
    wanted = [one for one in wanted if (one.template.namespace or namespace) == namespace]
    if not wanted:
        known = ", ".join(sorted({f"{one.template.kind.lower()}/{one.template.name}" for one in world.workloads})[:10])
        hint = f"there are {known}" if known else "-n sets the namespace, -f reads a file with it"
        raise InputError("missing", f"there is no {kind} {_full_name(namespace, name)} with pods", hint=hint)
    return wanted


def _claim(world: World, claim: Wire) -> ExplainedSubject:
    name = f"claim {claim_name(claim)}"
    if not allocation_of(claim):
        if why := unknown_reason(world):
            return ExplainedSubject(name, answer=f"it is not known whether {name} fits: {why}", is_known=False)
        return ExplainedSubject(name, claims=(claim,))
    users = [consumer["name"] for consumer in (claim.get("status") or {}).get("reservedFor") or ()]
    used = f"used by pods {', '.join(users[:8])}" if users else "used by no pod"
    if claim["metadata"].get("deletionTimestamp"):
        used += "; it is being deleted"
    return ExplainedSubject(name, answer=f"{name} is allocated: it holds {_held([claim])}; {used}", ok=True)


def _pod(world: World, pod: Wire, last_event: LastEvent) -> ExplainedSubject:
    name = f"pod {pod_name(pod)}"
    if has_ended(pod):
        return ExplainedSubject(
            name, pod, answer=f"{name} has ended ({pod['status']['phase']}) and holds nothing", ok=True
        )
    try:
        asked = pod_claims(world, pod)
    except InputError as fault:
        hint = f" ({fault.hint})" if fault.hint else ""
        is_known = fault.code != NOT_SEEN or is_bound(pod)
        return ExplainedSubject(name, pod, answer=f"{fault.message}{hint}", ok=is_bound(pod), is_known=is_known)
    allocated = tuple(claim for claim in asked.claims if allocation_of(claim))
    if is_bound(pod):
        return _bound(name, pod, allocated, last_event)
    return _waiting(world, name, pod, asked, allocated)


def _waiting(
    world: World, name: str, pod: Wire, asked: PodClaims, allocated: tuple[ClaimWire, ...]
) -> ExplainedSubject:
    """Return the subject for a pod that has no node yet."""
    if pod["metadata"].get("deletionTimestamp"):
        return ExplainedSubject(name, pod, answer=f"{name} is being deleted and is not scheduled any more")
    if gates := (pod.get("spec") or {}).get("schedulingGates"):
        held = ", ".join(str(gate.get("name")) for gate in gates if isinstance(gate, dict))
        return ExplainedSubject(
            name, pod, answer=f"{name} is not scheduled before its scheduling gates are gone: {held}"
        )
    asks = asked.resources or any(not allocation_of(claim) for claim in asked.claims)
    if asks and (why := unknown_reason(world)):
        said = scheduler_message(pod)
        verdict = f"; the scheduler says: {said}" if said else ""
        answer = f"it is not known whether {name} fits: {why}{verdict}"
        return ExplainedSubject(name, pod, answer=answer, is_known=False)
    notes = _resource_notes(world, pod)
    if asked.resources:
        ok = is_offered(world, asked.resources)
        return ExplainedSubject(name, pod, answer=f"{name} {unserved(world, asked.resources)}", ok=ok)
    if not asked.claims:
        verb = "gets" if ignored_resources(world, extended_resources(pod)) else "asks for"
        return ExplainedSubject(name, pod, notes=notes, answer=f"{name} {verb} no device", ok=True)
    return ExplainedSubject(name, pod, tuple(c for c in asked.claims if not allocation_of(c)), allocated, notes)


def _bound(name: str, pod: Wire, allocated: Sequence[Wire], last_event: LastEvent) -> ExplainedSubject:
    """Return the subject for a pod with a node: what it holds, and whether its kubelet has begun to start it."""
    node, held = pod["spec"]["nodeName"], _held(allocated)
    status = pod.get("status") or {}
    ending = bool(pod["metadata"].get("deletionTimestamp"))
    if ending:
        text = f"{name} is terminating on node {node}: it is being deleted, and until it has ended it holds {held}"
        return ExplainedSubject(name, pod, allocated=tuple(allocated), answer=text, ok=True)
    if status.get("phase") == "Running" or (status.get("phase") and is_prepared(pod)):
        verb, trouble = "runs" if status["phase"] == "Running" else "starts", container_trouble(pod)
        text = f"{name} {verb} on node {node} and holds {held}"
        if trouble:
            text = f"{name} is {status['phase']} on node {node}: {trouble}; it holds {held}"
        return ExplainedSubject(name, pod, allocated=tuple(allocated), answer=text, ok=True)
    if not allocated:
        return ExplainedSubject(name, pod, answer=f"{name} is bound to node {node} and holds no device", ok=True)
    event = last_event(pod["metadata"].get("namespace") or "default", pod["metadata"]["name"])
    reported = f"; the kubelet's last event: {event}" if event else ""
    text = f"{name} is bound to node {node}, which has not prepared its devices yet: {held}{reported}"
    return ExplainedSubject(name, pod, allocated=tuple(allocated), answer=text)


def _held(claims: Sequence[Wire]) -> str:
    parts = [f"{', '.join(devices_of([claim])) or 'nothing'} (claim {claim_name(claim)})" for claim in claims]
    return "; ".join(parts) or "no device"


def _resource_notes(world: World, pod: Wire) -> tuple[str, ...]:
    served = [(name, world.classes_by_resource.get(name)) for name in extended_resources(pod)]
    notes = [f"extended resource {name} is served by DeviceClass {by}" for name, by in served if by]
    return (*notes, *resource_notes(world, pod))


# The exit status and the document for explained subjects.

MAX_WRITTEN = 256  # kinds of nodes that a document describes device by device

Explained = tuple[ExplainedSubject, AllocationExplanation | None]


def exit_code(judged: Sequence[Explained], world: World) -> ExitCode:
    """Return the exit status for all subjects: an error that ends scheduling takes precedence, and then "not known"."""
    if any(explanation is not None and explanation.aborts for _, explanation in judged):
        return ExitCode.ABORTS_SCHEDULING
    if not all(
        subject.is_known if explanation is None else is_certain(world, ok=explanation.ok)
        for subject, explanation in judged
    ):
        return ExitCode.ENVIRONMENT
    if not judged and world.unseen:
        return ExitCode.ENVIRONMENT  # there may be subjects that can't be seen
    is_ok = all(subject.ok if explanation is None else explanation.ok for subject, explanation in judged)
    return ExitCode.OK if is_ok else ExitCode.NO_MATCH


def explanations_document(judged: Sequence[Explained], rules: AppliedRules, *, is_one: bool) -> OutputDocument:
    """Return the document of all subjects; with `is_one` and a single subject, the document of that subject."""
    documents = [_document(subject, explanation, rules) for subject, explanation in judged]
    if is_one and len(documents) == 1:
        return OutputDocument(DocumentKind.EXPLANATION, documents[0])
    return OutputDocument(DocumentKind.EXPLANATIONS, {"explanations": documents})


def _document(subject: ExplainedSubject, explanation: AllocationExplanation | None, rules: AppliedRules) -> Wire:
    """Return the document of a subject. Only the first `MAX_WRITTEN` kinds of nodes are described by their devices."""
    gates = {name: {"on": on, "how": rules.how[name]} for name, on in sorted(rules.gates.items())}
    head: Wire = {"subject": _subject(subject), "notes": list(subject.notes), "gates": gates}
    if explanation is None:
        ended: Wire = {"ok": subject.ok, "sentence": subject.answer, "nodes": [], "aborts": False}
        return {**ended, "kubernetes": rules.kubernetes, "exact": True, **head}
    nodes = [_node(node, with_funnels=place < MAX_WRITTEN) for place, node in enumerate(explanation.nodes)]
    return {
        "ok": explanation.ok,
        "sentence": explanation.sentence,
        "nodes": nodes,
        "aborts": explanation.aborts,
        "kubernetes": explanation.kubernetes,
        "exact": explanation.exact,
        **head,
    }


def _subject(subject: ExplainedSubject) -> Wire:
    kind, _, name = subject.name.partition(" ")
    if subject.pod is not None:
        metadata = subject.pod["metadata"]
        return {"kind": "pod", "namespace": metadata.get("namespace") or "default", "name": metadata["name"]}
    namespace, _, own = name.rpartition("/")
    return {"kind": kind, "namespace": namespace or None, "name": own}


def _node(node: NodeExplanation, *, with_funnels: bool) -> Wire:
    """Return the document of a node.

    It contains whether the search took too long, but not how many placements were tried.
    """
    outcome = node.outcome
    return {
        "node": node.node,
        "like": list(node.like),
        "ok": node.ok,
        "sentence": node.sentence,
        "notes": list(node.notes),
        "skipped": node.skipped or None,
        "outcome": {
            "category": str(outcome.category),
            "results": outcome.results,
            "error": outcome.error,
            "othersPossible": outcome.others_possible,
            "timesOut": outcome.times_out,
        }
        if outcome is not None
        else None,
        "funnels": plain(node.funnels) if with_funnels else [],
    }


# Explain subjects one after the other, each with the devices of the earlier ones taken.

_COMPARED = "1.35"  # between it and the next one, verdicts changed most
_NEWER = f"1.{Since.SORTED_SEARCH}"


class SubjectExplainer:
    """Explains subjects in the state of a cluster, which changes with every subject that fits."""

    def __init__(
        self, world: World, rules: AppliedRules, only: Sequence[str] = (), lines: ProgressLines = NoProgress
    ) -> None:
        state: Any = {
            "slices": world.of("ResourceSlice"),
            "classes": world.of("DeviceClass"),
            "allocated": world.allocated(),
        }
        self._allocator = Allocator(**state, kubernetes=rules.kubernetes, gates=rules.gates)
        self._newer = None
        if self._allocator.rules.kubernetes == _COMPARED:
            self._newer = Allocator(**state, kubernetes=_NEWER, features=self._allocator.features)
        self._nodes = _nodes(world, only)
        self._lines = lines
        self._made: dict[str, Wire] = {}

    @property
    def is_exact(self) -> bool:
        """Whether there are recorded verdicts of this version of Kubernetes."""
        return self._allocator.rules.exact

    def explain(self, subject: ExplainedSubject) -> AllocationExplanation | None:
        """Explain one subject; return None if it already has an answer."""
        if subject.answer:
            return None
        known = [self._made.get(claim_name(claim)) for claim in subject.claims]
        claims = [claim for claim, made in zip(subject.claims, known, strict=True) if made is None]
        allocated = [*subject.allocated, *(made for made in known if made is not None)]
        explanation = explain(
            self._allocator,
            claims,
            counted(self._nodes, "nodes", self._lines),
            pod=subject.pod,
            allocated=allocated,
            newer=self._newer,
            folds=len(self._nodes) > FEW_NODES,
        )
        if explanation.ok:
            self._take(claims, explanation)
        return explanation

    def _take(self, claims: Sequence[Wire], explanation: AllocationExplanation) -> None:
        outcome = next(node.outcome for node in explanation.nodes if node.ok)
        for claim, result in zip(claims, (outcome.results if outcome else None) or (), strict=True):
            made = {**claim, "status": {"allocation": result}}
            self._made[claim_name(claim)] = made
            for one in (self._allocator, self._newer):
                if one is not None:
                    one.hold(made)


def _nodes(world: World, only: Sequence[str]) -> list[Wire]:
    """Return the nodes, or only the named ones. Raises: InputError("input.missing") for a name that no node has."""
    nodes = {node["metadata"]["name"]: node for node in world.of("Node")}
    if missing := [name for name in only if name not in nodes and not world.is_unseen("Node")]:
        raise InputError("missing", f"there is no node {missing[0]}", hint=nearest(missing[0], sorted(nodes)[:20]))
    return [node for name, node in nodes.items() if not only or name in only]
