"""Placement: which devices a pod's claims get on this node, and the explanation in words.

In: claims, the cluster's slices, classes and held claims. Out: one `ClaimOutcome` for each claim: an allocation with a
reason for each choice, or a refusal with its reason. The room `allocation` decides; this module words the result.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.allocation.allocator import Allocator, PodAllocator
from dra_driver.allocation.explanation import AllocationExplanation, explain
from dra_driver.allocation.funnel import Funnel, funnels_on
from dra_driver.allocation.requests import Alternative, RequestPlan
from dra_driver.base.errors import NodeError, Retry
from dra_driver.base.wire import ClaimWire, ClassWire, SliceWire, Wire
from dra_driver.simulator.api_server import Api
from dra_driver.simulator.store import CLAIMS, CLASSES, PODS, SLICES, TEMPLATES

DeviceId = tuple[str, str, str]  # driver, pool, device


@dataclass(frozen=True, slots=True)
class Choice:
    """One device of an allocation and why it was chosen; for a shared device also how much of it was taken."""

    request: str
    id: DeviceId
    is_admin: bool
    reason: str
    consumed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """The result for one claim: `allocation` in wire form, or None and a `refusal`.

    `aborts` means that an error ended the allocation.
    """

    allocation: Wire | None
    choices: tuple[Choice, ...] = ()
    refusal: str = ""
    aborts: bool = False


def place(
    claims: Sequence[ClaimWire],
    *,
    slices: Sequence[SliceWire],
    classes: Sequence[ClassWire],
    held: Sequence[ClaimWire],
    node: str,
    kubernetes: str,
) -> list[ClaimOutcome]:
    """Place a pod's claims on a node, either all of them or none."""
    allocator = Allocator(slices=slices, classes=classes, allocated=held, kubernetes=kubernetes)
    wire = {"metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}}
    asked = allocator.for_claims(claims)
    found = asked.allocate(wire)
    if found.results is None:
        return _refusals(asked, explain(allocator, claims, [wire]))
    funnels = {(funnel.claim, funnel.request): funnel for funnel in funnels_on(asked.context, asked.pools(wire), wire)}
    return [
        ClaimOutcome(result, tuple(_choices(asked, number, result, funnels)))
        for number, result in enumerate(found.results)
    ]


def _refusals(asked: PodAllocator, explained: AllocationExplanation) -> list[ClaimOutcome]:
    """Return a refusal for each claim: its requests that lack devices or, if none does, the explanation's sentence."""
    [node] = explained.nodes
    short: dict[str, list[str]] = {}
    pairs = list(zip(asked.plan.alternatives, node.funnels, strict=False))
    for alternative, seen in pairs if not explained.aborts else ():
        funnels = [f for a, f in pairs if (a.claim, a.request) == (alternative.claim, alternative.request)]
        if all(funnel.is_short for funnel in funnels):
            wants = "all" if seen.wants is None else str(seen.wants)
            line = f"request {seen.request} wants {wants}: {_counts(alternative, seen)}"
            short.setdefault(seen.claim, []).append(line)
    elsewhere = "another claim of the pod can't be met" if short else node.sentence
    texts = ["; ".join(short.get(claim.name) or [elsewhere]) for claim in asked.plan.claims]
    return [ClaimOutcome(None, refusal=text, aborts=explained.aborts) for text in texts]


def _choices(asked: PodAllocator, number: int, result: Wire, funnels: dict[tuple[str, str], Funnel]) -> list[Choice]:
    plan = asked.plan.claims[number]
    by_name = {a.full_name: (request, a) for request in plan.requests for a in request.alternatives}
    choices = []
    for one in result["devices"].get("results") or ():
        request, alternative = by_name[one["request"]]
        lines = [_why(plan.constraint_wires, request, alternative, funnels[plan.name, alternative.full_name])]
        lines += [
            f"not {before.full_name} ({_counts(before, funnels[plan.name, before.full_name])})"
            for before in request.alternatives[: alternative.number]
        ]
        device = (one["driver"], one["pool"], one["device"])
        consumed = one.get("consumedCapacity") or {}
        choices.append(Choice(one["request"], device, bool(one.get("adminAccess")), "; ".join(lines), consumed))
    return choices


def _why(constraints: Sequence[Wire], request: RequestPlan, alternative: Alternative, seen: Funnel) -> str:
    reason = "all that match" if alternative.is_all else "first that fits"
    for constraint in constraints:
        names = constraint.get("requests") or ()
        if not names or alternative.full_name in names or alternative.request_name in names:
            how = "equal" if "matchAttribute" in constraint else "different"
            reason += f" with {how} {constraint.get('matchAttribute') or constraint.get('distinctAttribute')}"
    if alternative.is_admin:
        reason += ", admin access: it does not matter who else holds it"
    if request.has_choice:
        reason += f", choice {alternative.number + 1} of {len(request.alternatives)}"
    return f"{reason} ({_counts(alternative, seen)})"


def _counts(alternative: Alternative, seen: Funnel) -> str:
    """Return how many devices were left after each stage that matters here, in words."""
    stages = {stage.name: stage for stage in seen.stages}
    class_name = alternative.device_class["metadata"]["name"]
    counts = f"{seen.devices} devices here, {stages['class selector'].left} of class {class_name}"
    if alternative.wire.get("selectors"):
        matching = stages["request selectors"].left
        counts += f", {matching} {'matches' if matching == 1 else 'match'} the selectors"
    if tainted := len(stages["taints"].lost):
        counts += f", {tainted} tainted"
    if held := len(stages["in use"].lost):
        counts += f", {held} held by other claims"
    if full := len(stages["capacity"].lost):
        counts += f", {full} without enough capacity left"
    if apart := len(stages["constraints"].lost):
        counts += f", {apart} can't meet the constraints"
    return counts


# Pod claims: the claim to which an entry of a pod's spec.resourceClaims refers.


def claim_name(pod: Wire, entry: Wire) -> str:
    """Return the name of the claim to which an entry of spec.resourceClaims refers.

    Raises: NodeError if the claim has not been created yet.
    """
    if name := entry.get("resourceClaimName"):
        return str(name)
    for status in (pod.get("status") or {}).get("resourceClaimStatuses") or []:
        if status["name"] == entry["name"]:
            return str(status["resourceClaimName"])
    message = f"pod {pod['metadata']['name']}: no claim has been created from the template of {entry['name']!r} yet"
    raise NodeError("claim", message, retry=Retry.LATER)


# Pods: the claims of a pod are created from templates, and released when the pod ends, as the controllers do it.

FINALIZER = "resource.kubernetes.io/delete-protection"
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def make_claims(api: Api, pod: Wire) -> Wire:
    """Create the claims that a pod requests by template, and return the pod with their names in its status."""
    metadata, statuses = pod["metadata"], []
    namespace = metadata["namespace"]
    for entry in pod["spec"].get("resourceClaims") or []:
        if "resourceClaimTemplateName" not in entry:
            continue
        template = api.request("GET", TEMPLATES.path(namespace, entry["resourceClaimTemplateName"]))
        made = api.request("POST", CLAIMS.path(namespace), body=_claim(metadata, entry["name"], template["spec"]))
        statuses.append({"name": entry["name"], "resourceClaimName": made["metadata"]["name"]})
    if not statuses:
        return pod
    status = {**(pod.get("status") or {}), "resourceClaimStatuses": statuses}
    return api.request("PUT", PODS.path(namespace, metadata["name"]) + "/status", body={**pod, "status": status})


def _claim(pod: Wire, entry: str, template: Wire) -> ClaimWire:
    """Return the claim that an entry of a pod requests by a template; `pod` is the pod's metadata."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    extra = template.get("metadata") or {}
    return {
        "metadata": {
            "name": f"{pod['name']}-{entry}-{''.join(random.choices(_SUFFIX, k=5))}",  # noqa: S311
            "labels": extra.get("labels") or {},
            "annotations": {**(extra.get("annotations") or {}), "resource.kubernetes.io/pod-claim-name": entry},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": template.get("spec") or {},
    }


def claims_of(api: Api, pod: Wire) -> list[ClaimWire]:
    """Return the claims of a pod, in the order in which the pod lists them."""
    namespace = pod["metadata"]["namespace"]
    names = [claim_name(pod, entry) for entry in pod["spec"].get("resourceClaims") or []]
    return [api.request("GET", CLAIMS.path(namespace, name)) for name in dict.fromkeys(names)]


def end_pod(api: Api, pod: Wire) -> None:
    """End a pod: remove its reservations, deallocate the claims without any reservation, and delete the pod."""
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
    for claim in claims_of(api, pod):
        path = CLAIMS.path(namespace, claim["metadata"]["name"])
        status = dict(claim.get("status") or {})
        status["reservedFor"] = [user for user in status.get("reservedFor") or [] if user["uid"] != uid]
        if not status["reservedFor"]:
            status = {}
        claim = api.request("PUT", path + "/status", body={**claim, "status": status})  # noqa: PLW2901
        if not status and FINALIZER in (claim["metadata"].get("finalizers") or []):
            claim["metadata"]["finalizers"].remove(FINALIZER)
            api.request("PUT", path, body=claim)
    api.request("DELETE", PODS.path(namespace, pod["metadata"]["name"]))


# Scheduler: one scheduling step for one pod on one node, through the API.


@dataclass(frozen=True, slots=True)
class ClaimPlacement:
    """The result for one claim of a pod. A claim that was allocated before has no choices."""

    claim: str
    outcome: ClaimOutcome


class EmbeddedScheduler:
    """Schedules pods onto one node."""

    def __init__(self, api: Api, *, node: str, kubernetes: str = "1.36") -> None:
        self._api = api
        self._node = node
        self._kubernetes = kubernetes

    def schedule(self, pod: Wire) -> tuple[Wire, list[ClaimPlacement]]:
        """Place a pod. Return the pod (bound if all its claims were placed) and the result for each claim."""
        claims = claims_of(self._api, pod)
        known = [(claim.get("status") or {}).get("allocation") for claim in claims]
        waiting = [claim for claim, allocation in zip(claims, known, strict=True) if not allocation]
        made = iter(
            place(
                waiting,
                slices=self._items(SLICES.path()),
                classes=self._items(CLASSES.path()),
                held=self._items(CLAIMS.path()),
                node=self._node,
                kubernetes=self._kubernetes,
            )
        )
        placements = [
            ClaimPlacement(claim["metadata"]["name"], ClaimOutcome(allocation) if allocation else next(made))
            for claim, allocation in zip(claims, known, strict=True)
        ]
        if any(placement.outcome.allocation is None for placement in placements):
            return pod, placements
        for claim, placement in zip(claims, placements, strict=True):
            self._reserve(claim, placement.outcome.allocation, pod)
        bound = {**pod, "spec": {**pod["spec"], "nodeName": self._node}}
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"])
        return self._api.request("PUT", path, body=bound), placements

    def _reserve(self, claim: ClaimWire, allocation: Wire | None, pod: Wire) -> None:
        """Write the finalizer, and then allocation and reservation, as the scheduler's PreBind does."""
        metadata = claim["metadata"]
        path = CLAIMS.path(metadata["namespace"], metadata["name"])
        if FINALIZER not in (metadata.get("finalizers") or []):
            finalizers = [*(metadata.get("finalizers") or []), FINALIZER]
            claim = self._api.request("PUT", path, body={**claim, "metadata": {**metadata, "finalizers": finalizers}})
        status = dict(claim.get("status") or {})
        user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        status |= {"allocation": allocation, "reservedFor": [*(status.get("reservedFor") or []), user]}
        self._api.request("PUT", path + "/status", body={**claim, "status": status})

    def _items(self, path: str) -> list[Wire]:
        items: list[Wire] = self._api.request("GET", path)["items"]
        return items
