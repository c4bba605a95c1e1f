"""Checks of what runs on GPU nodes: nodes without a taint that keeps other pods away, and pods there that use no GPU.

Pure. In: `ClusterEvidence`. Out: findings. If every node has GPUs, such pods have nowhere else to run, so nothing is
reported.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.doctor.checks.slice_checks import has_gpus
from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.model.wire import Wire

_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_OVER = frozenset({"Succeeded", "Failed"})
_MIRROR = "kubernetes.io/config.mirror"  # the annotation of a static pod's copy in the API server
_GPU_RESOURCE = "nvidia.com/"
_MAX_NAMED = 5


def check_taints(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each GPU node without a taint, with its pods that use no GPU, if other nodes have no GPUs."""
    if not cluster.has("nodes", "slices"):
        return
    with_gpus = {one["spec"].get("nodeName") for one in cluster.of("slices") if _is_ours(one, cluster.driver)}
    nodes = {node["metadata"]["name"]: node for node in cluster.of("nodes")}
    if all(name in with_gpus or has_gpus(node) for name, node in nodes.items()):
        return
    for name in sorted(with_gpus & nodes.keys()):
        if any(one.get("effect") in _KEEPS_AWAY for one in (nodes[name].get("spec") or {}).get("taints") or ()):
            continue
        pods = sorted(_name(pod) for pod in cluster.of("pods") if _could_run_elsewhere(pod, name))
        more = f" and {len(pods) - _MAX_NAMED} more" if len(pods) > _MAX_NAMED else ""
        running = f"; pods without a GPU run there: {', '.join(pods[:_MAX_NAMED])}{more}" if pods else ""
        yield Finding(
            "node-untainted", f"node {name}", f"has GPUs and no taint that keeps other pods away{running}",
            "spec.taints of the node beside GET resourceslices and pods",
            f"kubectl taint nodes {name} nvidia.com/gpu=present:NoSchedule; pods with claims then need a toleration",
        )  # fmt: skip


def _is_ours(wire: Wire, driver: str) -> bool:
    return wire["spec"].get("driver") == driver and bool(wire["spec"].get("devices"))


def _could_run_elsewhere(pod: Wire, node: str) -> bool:
    """Return whether a pod runs on a node without using a GPU, and could run elsewhere."""
    spec, metadata = pod.get("spec") or {}, pod["metadata"]
    if spec.get("nodeName") != node or (pod.get("status") or {}).get("phase") in _OVER or spec.get("resourceClaims"):
        return False
    owners = [one.get("kind") for one in metadata.get("ownerReferences") or () if one.get("controller")]
    if "DaemonSet" in owners or "Node" in owners or _MIRROR in (metadata.get("annotations") or {}):
        return False
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    limits = [name for one in containers for name in ((one.get("resources") or {}).get("limits") or {})]
    return not any(name.startswith(_GPU_RESOURCE) for name in limits)


def _name(pod: Wire) -> str:
    return f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
