"""Readers: who a bearer token belongs to, and whether its owner may read a path that belongs to no resource.

In: a token. Out: an owner, or none; a verdict. Both are asked of the API server, which knows; nothing is kept here.
Source: Kubernetes, TokenReview (authentication.k8s.io/v1) and SubjectAccessReview (authorization.k8s.io/v1).
"""

from __future__ import annotations

from typing import Protocol

from dra_driver.kube.answers import bad_answer
from dra_driver.kube.paths import ACCESS_REVIEWS, TOKEN_REVIEWS
from dra_driver.model.wire import Wire


class ReviewApi(Protocol):
    """Who asks for reviews."""

    def request(self, method: str, path: str, *, body: Wire | None = None) -> Wire:
        """Send a request. Raises: ApiError."""


def owner_of(token: str, api: ReviewApi) -> Wire | None:
    """Return the user that a token belongs to, as the API server describes it; None for no user. Raises: ApiError."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = _status(api.request("POST", TOKEN_REVIEWS, body=review))
    if status.get("authenticated") is not True:
        return None
    user = status.get("user")
    if not isinstance(user, dict) or not isinstance(user.get("username"), str) or not user["username"]:
        raise bad_answer("TokenReview.status.user names nobody")
    return user


def may_read(user: Wire, path: str, api: ReviewApi) -> bool:
    """Return whether a user may get a path that belongs to no resource. Raises: ApiError."""
    spec: Wire = {"user": user["username"], "nonResourceAttributes": {"path": path, "verb": "get"}}
    spec |= {field: user[field] for field in ("uid", "groups", "extra") if user.get(field)}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    status = _status(api.request("POST", ACCESS_REVIEWS, body=review))
    return status.get("allowed") is True and status.get("denied") is not True


def _status(answer: Wire) -> Wire:
    status = answer.get("status")
    if not isinstance(status, dict):
        raise bad_answer("a review without a status")
    return status
