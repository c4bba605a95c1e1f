"""Paths of the kinds that this driver uses in the Kubernetes API. No other module writes out such a path."""

from __future__ import annotations

import functools
import re
from urllib.parse import quote

RESOURCE_GROUP = "resource.k8s.io/v1"
_RESOURCES = f"/apis/{RESOURCE_GROUP}"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"

CLAIMS = f"{_RESOURCES}/resourceclaims"
CLASSES = f"{_RESOURCES}/deviceclasses"
SLICES = f"{_RESOURCES}/resourceslices"
TEMPLATES = f"{_RESOURCES}/resourceclaimtemplates"

EVENTS = "/api/v1/events"
NAMESPACES = "/api/v1/namespaces"
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
LEASES = "/apis/coordination.k8s.io/v1/leases"
DAEMON_SETS = "/apis/apps/v1/daemonsets"
NODE_FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/nodefeatures"

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
OWN_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
OWN_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
POLICIES = f"{_ADMISSION}/validatingadmissionpolicies"
POLICY_BINDINGS = f"{_ADMISSION}/validatingadmissionpolicybindings"
WEBHOOKS = f"{_ADMISSION}/validatingwebhookconfigurations"

# The paths of workloads in the API. Source: the projects' CustomResourceDefinitions.
WORKLOADS = {
    "deployment": "/apis/apps/v1/deployments",
    "statefulset": "/apis/apps/v1/statefulsets",
    "daemonset": "/apis/apps/v1/daemonsets",
    "replicaset": "/apis/apps/v1/replicasets",
    "job": "/apis/batch/v1/jobs",
    "cronjob": "/apis/batch/v1/cronjobs",
    "pytorchjob": "/apis/kubeflow.org/v1/pytorchjobs",
    "tfjob": "/apis/kubeflow.org/v1/tfjobs",
    "mpijob": "/apis/kubeflow.org/v2beta1/mpijobs",
    "raycluster": "/apis/ray.io/v1/rayclusters",
    "rayjob": "/apis/ray.io/v1/rayjobs",
    "rayservice": "/apis/ray.io/v1/rayservices",
    "leaderworkerset": "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
    "jobset": "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
}
_IS_PLAIN = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*").fullmatch


def resource_group(version: str) -> str:
    """Return the path of what the API server serves in a version of resource.k8s.io."""
    return f"/apis/resource.k8s.io/{version}"


def slice_path(name: str) -> str:
    """Return the path of one ResourceSlice."""
    return named(SLICES, name)


@functools.lru_cache(maxsize=64)
def claim_path(namespace: str, name: str) -> str:
    """Return the path of one ResourceClaim."""
    return named(within(CLAIMS, namespace), name)


def node_path(name: str) -> str:
    """Return the path of one Node."""
    return named(NODES, name)


def secret_path(namespace: str, name: str) -> str:
    """Return the path of one Secret."""
    return named(f"{named(NAMESPACES, namespace)}/secrets", name)


def group_of(kind: str) -> tuple[str, str]:
    """Return the API group ("" for the core) and the plural of a kind, from the path of all its objects.

    >>> group_of(CLAIMS), group_of(PODS)
    (('resource.k8s.io', 'resourceclaims'), ('', 'pods'))
    """
    prefix, _, plural = kind.rpartition("/")
    return (prefix.split("/")[2] if prefix.startswith("/apis/") else "", plural)


def within(kind: str, namespace: str) -> str:
    """Return the path of a kind's objects in one namespace, from the path of all of them."""
    version, _, plural = kind.rpartition("/")
    return f"{version}/namespaces/{_quoted(namespace)}/{plural}"


def named(kind: str, name: str) -> str:
    """Return the path of one object below the path of its kind."""
    return f"{kind}/{_quoted(name)}"


def _quoted(part: str) -> str:
    """Return a name as one part of a path. The API's own names are quoted as they are, which `quote` is slow to see."""
    return part if _IS_PLAIN(part) else quote(part, safe="")
