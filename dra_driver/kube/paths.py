"""Paths of the kinds that this driver uses in the Kubernetes API. No other module writes out such a path."""

from __future__ import annotations

import functools
import re
from typing import Any, Protocol
from urllib.parse import quote

from dra_driver.base.wire import ClaimWire, Wire
from dra_driver.kube.answers import bad_answer

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


# Reviews: whose a bearer token is, and what that user may read: a path that is no resource, or lists of a kind.


class ReviewApi(Protocol):
    """The part of the API that accepts reviews."""

    def request(self, method: str, path: str, *, body: Wire | None = None) -> Wire:
        """Send a request. Raises: ApiError."""


def owner_of(token: str, api: ReviewApi) -> Wire | None:
    """Return the user that a token belongs to, as the API server describes it; None if it is not valid.

    Raises: ApiError.
    """
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = _status(api.request("POST", TOKEN_REVIEWS, body=review))
    if status.get("authenticated") is not True:
        return None
    return _user(status.get("user"), "TokenReview.status.user")


def own_user(api: ReviewApi) -> Wire:
    """Return the user whose credentials `api` has, as the API server describes it. Raises: ApiError."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    status = _status(api.request("POST", OWN_REVIEWS, body=review))
    return _user(status.get("userInfo"), "SelfSubjectReview.status.userInfo")


def _user(found: Any, where: str) -> Wire:
    if not isinstance(found, dict) or not isinstance(found.get("username"), str) or not found["username"]:
        raise bad_answer(f"{where} has no username")
    return found


def may_read(user: Wire, path: str, api: ReviewApi) -> bool:
    """Return whether a user may GET a path that is not a resource of the API. Raises: ApiError."""
    return _is_allowed(user, {"nonResourceAttributes": {"path": path, "verb": "get"}}, api)


def may_list(user: Wire | None, kind: str, namespace: str, api: ReviewApi) -> bool:
    """Return whether a user (None: the one whose credentials `api` has) may list a kind in a namespace ("": in all).

    `kind` is the path of all objects of the kind. Raises: ApiError.
    """
    group, resource = group_of(kind)
    attributes = {"verb": "list", "group": group, "resource": resource}
    return _is_allowed(user, {"resourceAttributes": attributes | ({"namespace": namespace} if namespace else {})}, api)


def _is_allowed(user: Wire | None, spec: Wire, api: ReviewApi) -> bool:
    path, kind = OWN_ACCESS_REVIEWS, "SelfSubjectAccessReview"
    if user is not None:
        path, kind = ACCESS_REVIEWS, "SubjectAccessReview"
        spec = {"user": user["username"], **spec}
        spec |= {field: user[field] for field in ("uid", "groups", "extra") if user.get(field)}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    status = _status(api.request("POST", path, body=review))
    return status.get("allowed") is True and status.get("denied") is not True


def _status(answer: Wire) -> Wire:
    status = answer.get("status")
    if not isinstance(status, dict):
        raise bad_answer("the answer to a review has no status")
    return status


# Ports: the few methods of the Kubernetes API that single rooms need.


class NodeApi(Protocol):
    """The part of the API that reads nodes."""

    def get_node(self, name: str) -> Wire:
        """Return a Node. Raises: ApiError."""


class ClaimApi(Protocol):
    """The part of the API that reads claims."""

    def get_claim(self, namespace: str, name: str, *, timeout_s: float) -> ClaimWire:
        """Read one claim. Raises: ApiError."""
