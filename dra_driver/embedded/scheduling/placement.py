"""Placement: which devices a pod's claims get on this node, and the explanation in words.

In: claims, the cluster's slices, classes and held claims. Out: one `ClaimOutcome` for each claim: an allocation with a
reason for each choice, or a refusal with its reason. The room `allocation` decides; this module words the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.allocation.allocator import Allocator, PodAllocator
from dra_driver.allocation.explaining.explanation import AllocationExplanation, explain
from dra_driver.allocation.explaining.funnel import Funnel, funnels_on
from dra_driver.allocation.requests import Alternative, RequestPlan
from dra_driver.model.wire import ClaimWire, ClassWire, SliceWire, Wire

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
    funnels = {(one.claim, one.request): one for one in funnels_on(asked.context, asked.pools(wire), wire)}
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
