"""Reviews: whose a bearer token is, and what that user may read: a path that is no resource, or lists of a kind.

In: a token or a user. Out: the user, or None; whether the access is allowed. The API server answers both questions, and
its answers are not kept here.
Source: Kubernetes, TokenReview and SelfSubjectReview (authentication.k8s.io/v1), SubjectAccessReview and
SelfSubjectAccessReview (authorization.k8s.io/v1).
"""

from __future__ import annotations

from typing import Any, Protocol

from dra_driver.kube.answers import bad_answer
from dra_driver.kube.paths import ACCESS_REVIEWS, OWN_ACCESS_REVIEWS, OWN_REVIEWS, TOKEN_REVIEWS, group_of
from dra_driver.model.wire import Wire


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
