"""The paths of the few kinds of the Kubernetes API that this driver uses."""

from __future__ import annotations

from urllib.parse import quote

RESOURCE_GROUP = "resource.k8s.io/v1"
CLAIMS = f"/apis/{RESOURCE_GROUP}/resourceclaims"
SLICES = f"/apis/{RESOURCE_GROUP}/resourceslices"


def slice_path(name: str) -> str:
    """Return the path of one ResourceSlice."""
    return f"{SLICES}/{quote(name, safe='')}"


def claim_path(namespace: str, name: str) -> str:
    """Return the path of one ResourceClaim."""
    return f"/apis/{RESOURCE_GROUP}/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"


def node_path(name: str) -> str:
    """Return the path of one Node."""
    return f"/api/v1/nodes/{quote(name, safe='')}"
