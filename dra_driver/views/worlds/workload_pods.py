"""The pods that are made from a workload's template, as its controller would make them.

In: a pod template, nodes. Out: pods; for a DaemonSet, one for each node that it may run on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dra_driver.allocation.pools.pod_nodes import unsuitable_reason
from dra_driver.embedded.scheduling.pod_templates import PodTemplate
from dra_driver.model.wire import Wire

# Taints that the DaemonSet controller makes pods tolerate. Source: kubernetes.io, DaemonSet, taints and tolerations.
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
    """A pod template of an object, and the pods that were made from it."""

    template: PodTemplate
    pods: tuple[Wire, ...]

    @property
    def idle(self) -> str:
        """A sentence on why there are no pods; "" if there are some."""
        of = f", {self.template.role}" if self.template.role else ""
        name = f"{self.template.kind} {self.template.name}{of}"
        if self.pods:
            return ""
        if self.template.is_suspended:
            return f"{name} is suspended: it makes no pods until it is resumed"
        why = "no node that its pods may go to" if self.template.is_per_node else "its counts ask for 0"
        return f"{name} makes no pods: {why}"


def pods_of(template: PodTemplate, nodes: Sequence[Wire]) -> Iterator[Wire]:
    """Yield the pods of a template; for a DaemonSet, one for each node that it may run on."""
    if not template.is_per_node:
        yield from template.pods()
        return
    spec = template.pod["spec"]
    tolerations = [*(spec.get("tolerations") or ()), *_TOLERATED_BY_DAEMONS]
    owners = [{"kind": "DaemonSet", "name": template.name, "controller": True}]
    metadata = {**template.pod["metadata"], "ownerReferences": owners}
    daemon = replace(template, pod={**template.pod, "metadata": metadata, "spec": {**spec, "tolerations": tolerations}})
    for node in nodes:
        if unsuitable_reason(daemon.pod, node):
            continue
        name = node["metadata"]["name"]
        pod = daemon.named(f"{template.name}-{name}")
        yield {**pod, "spec": {**pod["spec"], "affinity": _on_node(name)}}


def _on_node(name: str) -> Wire:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
