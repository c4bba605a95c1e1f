"""Checks of pods that can't be scheduled, because something that they name does not exist or is not served.

Pure. In: `ClusterEvidence`. Out: findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.model.wire import Wire

_OURS = "nvidia.com/"
_GATE = "DRAExtendedResource"
_KINDS = {"resourceClaimTemplateName": ("templates", "template"), "resourceClaimName": ("claims", "claim")}


def check_references(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each waiting pod whose claim or template does not exist."""
    for pod in _waiting(cluster):
        namespace = pod["metadata"].get("namespace")
        made = {one.get("name") for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
        for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
            for key, (kind, word) in _KINDS.items():
                name = entry.get(key)
                if not name or entry["name"] in made or not cluster.has(kind):
                    continue
                here = [o["metadata"]["name"] for o in cluster.of(kind) if o["metadata"].get("namespace") == namespace]
                if name not in here:
                    near = get_close_matches(name, here, n=1)
                    yield Finding(
                        "pod-reference-missing", _subject(pod),
                        f"names {word} {namespace}/{name}, which does not exist", f"spec.resourceClaims, GET {kind}",
                        f"did you mean {near[0]}? Else create it" if near else f"create the {word} in {namespace}",
                    )  # fmt: skip


def check_resources(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each waiting pod that asks for an nvidia.com/* that no class and no device plugin serves."""
    if not cluster.has("classes", "nodes"):
        return
    is_on = cluster.kept.get(_GATE, True)
    classes = cluster.of("classes")
    served = {(one.get("spec") or {}).get("extendedResourceName"): one["metadata"]["name"] for one in classes}
    offered = [((one.get("status") or {}).get("allocatable") or {}) for one in cluster.of("nodes")]
    for pod in _waiting(cluster):
        for name in _resources(pod):
            if any(str(one.get(name, "0")) != "0" for one in offered) or (is_on and name in served):
                continue
            if name in served:
                why = f"class {served[name]} would serve it, but the API server's gate {_GATE} is off"
                remedy = f"ask by a claim of class {served[name]}, or switch {_GATE} on in all components"
            else:
                why = "no class has it as extendedResourceName, and no node's device plugin offers it"
                remedy = "set the chart's deviceClasses.extendedResources, or ask for the device by a claim"
            yield Finding(
                "pod-resource-unserved", _subject(pod), f"waits for {name}: {why}",
                "resources of its containers beside GET deviceclasses and nodes", remedy,
            )  # fmt: skip


def _waiting(cluster: ClusterEvidence) -> Iterator[Wire]:
    for pod in cluster.of("pods"):
        if (pod.get("status") or {}).get("phase") == "Pending" and not (pod.get("spec") or {}).get("nodeName"):
            yield pod


def _resources(pod: Wire) -> list[str]:
    containers = [container for key in ("initContainers", "containers") for container in pod["spec"].get(key) or ()]
    names = [name for one in containers for name in ((one.get("resources") or {}).get("limits") or {})]
    return [name for name in dict.fromkeys(names) if name.startswith(_OURS)]


def _subject(pod: Wire) -> str:
    return f"pod {pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
