"""Pods of a world: the claims of each, and its phase.

In: a `World` and a pod of it. Out: the pod's claims, including those that the cluster would make from templates; a name
for people; whether the pod runs. It is an error if something that a pod refers to is missing; the error suggests the
most similar name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from dra_driver.embedded.scheduling.workloads import with_claim
from dra_driver.model.errors import InputError
from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError
from dra_driver.model.wire import Wire
from dra_driver.views.worlds.implicit_names import ignored_resources
from dra_driver.views.worlds.world import World

NOT_SEEN = "input.not-seen"  # something that a pod refers to may not be read
_OVER = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodClaims:
    """A pod's claims. `resources` are the extended resources that the pod asks for and that no class serves."""

    claims: tuple[Wire, ...] = ()
    resources: tuple[str, ...] = ()


def pod_claims(world: World, pod: Wire) -> PodClaims:
    """Return a pod's claims, including those that a cluster would make from a template or for extended resources.

    Raises:
        InputError: A claim or template is missing.
    """
    entry = _made_for_resources(world, pod)
    if entry is not None:
        return PodClaims((*_named_claims(world, pod), entry), ())
    *made, changed = with_claim(pod, world.classes_by_resource)
    asked = extended_resources(pod)
    ignored = ignored_resources(world, asked)
    judged = (name for name in asked if name not in ignored and not is_unknown(world, name))
    unserved = tuple(name for name in judged if name not in world.classes_by_resource)
    return PodClaims((*_named_claims(world, {**changed, "spec": pod["spec"]}), *made), unserved)


def _made_for_resources(world: World, pod: Wire) -> Wire | None:
    """Return the claim that the scheduler has made for a pod's extended resources, if it has made one."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    name = status.get("resourceClaimName")
    return world.find("ResourceClaim", _namespace(pod), name) if isinstance(name, str) else None


def _named_claims(world: World, pod: Wire) -> Iterable[Wire]:
    """Yield the claims behind spec.resourceClaims."""
    made = {
        one["name"]: one.get("resourceClaimName")
        for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for wanted in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = made.get(wanted["name"]) or wanted.get("resourceClaimName")
        if name:
            yield _found(world, "ResourceClaim", name, wanted, pod)
            continue
        if wanted["name"] in made:
            continue  # the controller found that this pod needs no claim here
        name = wanted.get("resourceClaimTemplateName", "")
        template = _found(world, "ResourceClaimTemplate", name, wanted, pod)
        metadata = {"name": f"{pod['metadata']['name']}-{wanted['name']}", "namespace": _namespace(pod)}
        yield {"kind": "ResourceClaim", "metadata": metadata, "spec": template["spec"]["spec"]}


def _found(world: World, kind: str, name: str, wanted: Wire, pod: Wire) -> Wire:
    namespace = _namespace(pod)
    found = world.find(kind, namespace, name)
    if found is not None:
        return found
    needs = f"its claim {wanted['name']} needs {kind} {namespace}/{name}"
    if world.is_unseen(kind, namespace):
        text = f"it is not known whether pod {pod_name(pod)} can be scheduled: {needs}, which may not be read"
        raise InputError("not-seen", text)
    text = f"pod {pod_name(pod)} can't be scheduled: {needs}"
    maker = world.makers.get((namespace, name))
    if maker:
        raise InputError("missing", f"{text}, which another driver makes for {maker}, so it is not known here")
    here = {one["metadata"]["name"]: one["metadata"].get("namespace") or namespace for one in world.of(kind)}
    own = [one for one, where in here.items() if where == namespace]
    near = get_close_matches(name, own, n=1, cutoff=0.5)
    hint = f"did you mean {namespace}/{near[0]}?" if near else f"no {kind} in namespace {namespace} has a similar name"
    if not near and name in here:
        hint = f"there is one in namespace {here[name]}, but a pod uses only those of its own namespace"
    raise InputError("missing", f"{text}, which is missing", hint=hint)


def extended_resources(pod: Wire) -> tuple[str, ...]:
    """Return the extended resources that a pod's containers ask for, except those with an amount of 0.

    Source: Kubernetes resource names: those with a domain, except kubernetes.io's own and huge pages.
    """
    spec = pod.get("spec") or {}
    names: dict[str, None] = {}
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        for key in ("limits", "requests"):
            wanted = ((container.get("resources") or {}).get(key) or {}) if isinstance(container, dict) else {}
            for name, amount in wanted.items():
                if "/" in name and not name.startswith("kubernetes.io/") and not _is_none(amount):
                    names[name] = None
    return tuple(names)


def _is_none(amount: object) -> bool:
    try:
        return Quantity.parse(str(amount)).value <= 0
    except QuantityError:
        return False


def is_unknown(world: World, resource: str) -> bool:
    """Return whether it is unknown if a resource is offered.

    That is so if no class serves it, and no node lists what it offers, as is the case for simulated nodes.
    """
    if any((node.get("status") or {}).get("allocatable") for node in world.of("Node")):
        return False
    domain = resource.partition("/")[0]
    known = {"deviceclass.resource.kubernetes.io"}
    for one in world.of("DeviceClass"):
        known |= {one["metadata"]["name"], str((one.get("spec") or {}).get("extendedResourceName")).partition("/")[0]}
    return not any(name == domain or name.endswith(f".{domain}") for name in known)


def resource_notes(world: World, pod: Wire) -> list[str]:
    """Return sentences on a pod's extended resources that may or may not be offered, and on those that are ignored."""
    asked = extended_resources(pod)
    notes = []
    if names := [name for name in asked if is_unknown(world, name)]:
        notes.append(f"not judged: {', '.join(names)}; the nodes here do not say whether they offer it")
    if ignored := ignored_resources(world, asked):
        notes.append(
            f"pod {pod_name(pod)} starts without {', '.join(ignored)}: the scheduler of Kubernetes 1.34 makes no claim "
            "for the implicit name of a class"
        )
    return notes


def unserved(world: World, resources: Sequence[str]) -> str:
    """Return a sentence on what happens to extended resources that no class serves."""
    names = ", ".join(resources)
    if is_offered(world, resources):
        return f"asks for {names}, which a device plugin offers; whether that fits is not judged here"
    classes = sorted(
        f"{one['metadata']['name']} ({resource})"
        for one in world.of("DeviceClass")
        if (resource := (one.get("spec") or {}).get("extendedResourceName"))
    )
    there = f"there are {', '.join(classes)}" if classes else "no class has an extendedResourceName"
    if not world.serves_resources:
        return (
            f"waits for {names}: no node offers it, and classes serve extended resources only where the gate "
            f"DRAExtendedResource is on; {there}"
        )
    return f"waits for {names}: no DeviceClass serves it and no node offers it; {there}"


def is_offered(world: World, resources: Sequence[str]) -> bool:
    """Return whether nodes offer these resources, as device plugins do."""
    offered = [(one.get("status") or {}).get("allocatable") or {} for one in world.of("Node")]
    return all(any(str(one.get(name, "0")) != "0" for one in offered) for name in resources)


def pod_name(pod: Wire) -> str:
    """Return the name of a pod for people, with its namespace unless that is "default"."""
    namespace = _namespace(pod)
    name = pod["metadata"]["name"]
    return str(name) if namespace == "default" else f"{namespace}/{name}"


def has_ended(pod: Wire) -> bool:
    """Return whether a pod has ended, so that nothing of it runs and its devices are released."""
    return (pod.get("status") or {}).get("phase") in _OVER


def is_bound(pod: Wire) -> bool:
    """Return whether a pod has a node and has not ended."""
    return bool((pod.get("spec") or {}).get("nodeName")) and not has_ended(pod)


def is_terminating(pod: Wire) -> bool:
    """Return whether a pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def allocation_of(claim: Wire) -> Wire | None:
    """Return the allocation of a claim, or None if it has none."""
    return (claim.get("status") or {}).get("allocation") or None


def _namespace(pod: Wire) -> str:
    return pod["metadata"].get("namespace") or "default"
