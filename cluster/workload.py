"""Pods, claims and templates of the scenarios, as dicts that the API server accepts.

In: names. Out: manifests. Only images in the node's own store are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.image import BUSYBOX

# A container writes what it sees of its devices to its log; then it waits for the kubelet's SIGTERM.
SHOW = (
    'env; echo "at $(date +%s)"; '
    'for file in /dev/* /dev/*/*; do [ -c "$file" ] && stat -c "node %n %t:%T" "$file"; done; '
    'while read -r what where rest; do echo "mount $where"; done </proc/mounts; '
    "echo shown; "
)
STAY = 'trap "exit 0" TERM; sleep 100000 & wait'
# Ends only when killed, for a pod that needs its whole grace period.
STUBBORN = 'trap "" TERM; while true; do sleep 1; done'


def request(name: str, device_class: str = "gpu.nvidia.com", selector: str = "", **more: Any) -> dict[str, Any]:
    """Return one request for devices of a class; `count`, `adminAccess`, `allocationMode` by keyword."""
    exactly: dict[str, Any] = {"deviceClassName": device_class, **more}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": exactly}


def devices(
    *requests: Mapping[str, Any], constraints: Sequence[Any] = (), config: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return the spec of a claim."""
    content: dict[str, Any] = {"requests": list(requests)}
    if constraints:
        content["constraints"] = list(constraints)
    if config:
        content["config"] = list(config)
    return {"devices": content}


def claim(namespace: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ResourceClaim."""
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": spec}


def template(namespace: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ResourceClaimTemplate."""
    meta = {"name": name, "namespace": namespace}
    kind = "ResourceClaimTemplate"
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": meta, "spec": {"spec": spec}}


def container(name: str, *claims: str | tuple[str, str], script: str = SHOW + STAY) -> dict[str, Any]:
    """Return a container; a claim is given by its name alone or as (claim, request)."""
    used = [{"name": item} if isinstance(item, str) else {"name": item[0], "request": item[1]} for item in claims]
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": {"claims": used} if used else {},
    }


def pod(
    namespace: str,
    name: str,
    *containers: Mapping[str, Any],
    claims: Mapping[str, str] | None = None,
    templates: Mapping[str, str] | None = None,
    grace: int = 5,
    **more: Any,
) -> dict[str, Any]:
    """Return a pod; `claims` and `templates` map its own claim names to objects of the namespace."""
    sources = [{"name": own, "resourceClaimName": name} for own, name in (claims or {}).items()]
    sources += [{"name": own, "resourceClaimTemplateName": name} for own, name in (templates or {}).items()]
    spec = {
        "containers": list(containers),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        **more,
    }
    if sources:
        spec["resourceClaims"] = sources
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
