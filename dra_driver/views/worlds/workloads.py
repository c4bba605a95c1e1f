"""Workloads of files: objects that pods are made from, and those that mean nothing for devices.

In: an object that is no pod, claim, class, node or slice. Out: its pod templates in the world, or its name among what
is not understood, so that nothing is left out without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dra_driver.allocation.pools.pod_nodes import why_not_on
from dra_driver.embedded.scheduling.pod_templates import PodTemplate, templates_of
from dra_driver.model.wire import Wire

if TYPE_CHECKING:
    from dra_driver.views.worlds.world import World

# How people shorten kinds of workloads on a command line. Source: kubectl api-resources.
SHORT_KINDS = {"deploy": "deployment", "sts": "statefulset", "ds": "daemonset", "rs": "replicaset", "cj": "cronjob"}
# Kinds that stand beside workloads in people's files and bring no pods that ask for devices.
_WITHOUT_PODS = frozenset(
    """
    Namespace ConfigMap Secret Service ServiceAccount Endpoints EndpointSlice Event LimitRange ResourceQuota
    PersistentVolume PersistentVolumeClaim StorageClass CSIDriver Role RoleBinding ClusterRole ClusterRoleBinding
    NetworkPolicy Ingress IngressClass PriorityClass RuntimeClass PodDisruptionBudget HorizontalPodAutoscaler
    CustomResourceDefinition ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding
    ValidatingWebhookConfiguration MutatingWebhookConfiguration APIService Lease PodTemplate
    ClusterQueue LocalQueue ResourceFlavor WorkloadPriorityClass PodMonitor ServiceMonitor PodGroup
    DeviceTaintRule Gateway HTTPRoute ControllerRevision
    """.split()  # noqa: SIM905 - a list of words is easier to read
)
# What the DaemonSet controller lets its pods tolerate. Source: kubernetes.io, DaemonSet, taints and tolerations.
_TOLERATED_BY_DAEMONS = [
    {"key": key, "operator": "Exists", "effect": effect}
    for key, effect in (
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    )
]


@dataclass(frozen=True, slots=True)
class Workload:
    """A template of an object, and the pods that were made of it."""

    template: PodTemplate
    pods: tuple[Wire, ...]

    @property
    def idle(self) -> str:
        """A sentence on why there are no pods; "" where there are some."""
        of = f", {self.template.role}" if self.template.role else ""
        name = f"{self.template.kind} {self.template.name}{of}"
        if self.pods:
            return ""
        if self.template.is_suspended:
            return f"{name} is suspended: it makes no pods until it is resumed"
        why = "no node that its pods may go to" if self.template.is_per_node else "its counts ask for 0"
        return f"{name} makes no pods: {why}"


def add_workload(world: World, wire: Wire, name: str) -> None:
    """Add the pod templates of an object; name it among the strangers where it has none and might need some.

    Raises: InputError for a count of pods that is none.
    """
    kind = str(wire.get("kind") or "")
    _note_maker(world, wire, name)
    if kind in _WITHOUT_PODS:
        return
    found = templates_of(wire)
    if found:
        world.templates += found
    else:
        world.strangers.append(f"{kind} {name}")


def _note_maker(world: World, wire: Wire, name: str) -> None:
    """Record the ResourceClaimTemplate that a ComputeDomain asks its own driver to make.

    Source: NVIDIA k8s-dra-driver-gpu, ComputeDomain resource.nvidia.com/v1beta1, spec.channel.resourceClaimTemplate.
    """
    at: Any = wire
    for key in ("spec", "channel", "resourceClaimTemplate", "name"):
        at = at.get(key) if isinstance(at, dict) else None
    if wire.get("kind") == "ComputeDomain" and isinstance(at, str):
        metadata = wire.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
        world.makers[str(namespace or "default"), at] = f"ComputeDomain {name}"


def pods_of(template: PodTemplate, nodes: Sequence[Wire]) -> Iterator[Wire]:
    """Yield the pods of a template; of a DaemonSet one for each node that it may go to."""
    if not template.is_per_node:
        yield from template.pods()
        return
    spec = template.pod["spec"]
    tolerations = [*(spec.get("tolerations") or ()), *_TOLERATED_BY_DAEMONS]
    owners = [{"kind": "DaemonSet", "name": template.name, "controller": True}]
    metadata = {**template.pod["metadata"], "ownerReferences": owners}
    daemon = replace(template, pod={**template.pod, "metadata": metadata, "spec": {**spec, "tolerations": tolerations}})
    for node in nodes:
        if why_not_on(daemon.pod, node):
            continue
        name = node["metadata"]["name"]
        pod = daemon.named(f"{template.name}-{name}")
        yield {**pod, "spec": {**pod["spec"], "affinity": _on_node(name)}}


def _on_node(name: str) -> Wire:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
