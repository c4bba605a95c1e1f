"""Workloads in files: objects from which pods are made. Objects that have nothing to do with devices are left out.

In: an object that is not a pod, claim, class, node or slice. Out: its pod templates in the world; or its name in the
list of unknown objects, so that no object that may matter is left out silently.
"""

from __future__ import annotations

from typing import Any

from dra_driver.embedded.scheduling.pod_templates import templates_of
from dra_driver.model.wire import Wire
from dra_driver.views.worlds.world import World

# The short names of workloads on a command line. Source: kubectl api-resources.
SHORT_KINDS = {
    "deploy": "deployment",
    "sts": "statefulset",
    "ds": "daemonset",
    "rs": "replicaset",
    "cj": "cronjob",
    "rc": "replicationcontroller",
    "lws": "leaderworkerset",
}
# Kinds that people keep in the same files as workloads, and whose pods ask for no devices.
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


def add_workload(world: World, wire: Wire, name: str) -> None:
    """Add the pod templates of an object; if none is known although it may make pods, list it as an unknown object.

    Raises: InputError for a number of pods that is not a valid count.
    """
    kind = str(wire.get("kind") or "")
    _note_maker(world, wire, name)
    if kind in _WITHOUT_PODS:
        return
    found = templates_of(wire)
    if found:
        world.templates += found
    else:
        world.unknown_objects.append(f"{kind} {name}")


def _note_maker(world: World, wire: Wire, name: str) -> None:
    """Record the ResourceClaimTemplate that another driver makes for a ComputeDomain.

    Source: NVIDIA k8s-dra-driver-gpu, ComputeDomain resource.nvidia.com/v1beta1, spec.channel.resourceClaimTemplate.
    """
    at: Any = wire
    for key in ("spec", "channel", "resourceClaimTemplate", "name"):
        at = at.get(key) if isinstance(at, dict) else None
    if wire.get("kind") == "ComputeDomain" and isinstance(at, str):
        metadata = wire.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
        world.makers[str(namespace or "default"), at] = f"ComputeDomain {name}"
