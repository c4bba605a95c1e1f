"""FeatureObject: the labels of this node, in an object from which Node Feature Discovery takes them.

In: the labels that the vendor has for the node. Out: one NodeFeature in the release's namespace, applied at the start,
when the labels change, and once an hour in case the object was removed. If the agent's token names its ServiceAccount,
the object belongs to that account and is removed with the release; Node Feature Discovery removes the objects of nodes
that are gone.
Source: node-feature-discovery v0.19, API nfd.k8s-sigs.io/v1alpha1; Kubernetes, claims of ServiceAccount tokens.
"""

from __future__ import annotations

import base64
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from dra_driver.agent.reports.node_labels import LabelSource
from dra_driver.kube.paths import NODE_FEATURES, named, within
from dra_driver.model.errors import ApiError, Retry
from dra_driver.model.wire import Wire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

REFRESH_SECONDS = 3600.0
_API_VERSION = "nfd.k8s-sigs.io/v1alpha1"
_NODE_LABEL = "nfd.node.kubernetes.io/node-name"
_APPLY = "application/apply-patch+yaml"
# The option's role is missing, Node Feature Discovery is not installed, or it or a webhook refuses the object.
_LASTING = {400, 403, 404, 413, 422}


class ApplyServer(Protocol):
    """The requests that are needed of the API server."""

    def request(self, method: str, path: str, *, body: Wire, query: Mapping[str, str], content_type: str) -> Wire:
        """Send one request. Raises: ApiError."""

    def authorization(self) -> str:
        """Return the value of the Authorization header; "" for none."""


class FeatureObject:
    """One NodeFeature, kept in a namespace. The instance that has the node's role keeps it up to date."""

    def __init__(
        self,
        api: ApplyServer,
        labels: LabelSource,
        *,
        node: str,
        driver: str,
        namespace: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._labels, self._clock = api, labels, clock
        self._node, self._driver, self._namespace = node, driver, namespace
        self._written: Mapping[str, str] | None = None
        self._due = float("-inf")

    def tidy(self) -> int:
        """Write the current labels into the object; return 1 if they changed.

        Raises: ApiError for errors that may pass.
        """
        labels, now = self._labels.now(), self._clock()
        if labels is None or (now < self._due and labels == self._written):
            return 0
        if self._written is None and now < self._due:
            return 0  # refused a while ago
        try:
            self._apply(labels)
        except ApiError as error:
            self._rest(error, now)
            return 0
        was, self._written, self._due = self._written, dict(labels), now + _spread(REFRESH_SECONDS)
        return int(was != labels)

    def _apply(self, labels: Mapping[str, str]) -> None:
        name = feature_name(self._driver, self._node)
        body = feature_object(name, self._node, labels, owner=_account(self._api.authorization()))
        query = {"fieldManager": f"dra-driver {self._driver}", "force": "true"}
        path = named(within(NODE_FEATURES, self._namespace), name)
        self._api.request("PATCH", path, body=body, query=query, content_type=_APPLY)

    def _rest(self, error: ApiError, now: float) -> None:
        """Wait an hour after a refusal that will last. Raises: the error if it may pass."""
        if error.status not in _LASTING and error.retry is not Retry.NEVER:
            raise error
        self._written, self._due = None, now + _spread(REFRESH_SECONDS)
        text = "labels of this node not written: is Node Feature Discovery installed, and nodeLabels=object set?"
        log.warning(text, extra=fields(code=error.code, err=str(error)))


def feature_name(driver: str, node: str) -> str:
    """Return the name of the object for a driver on a node, as the chart's admission policy expects it."""
    return f"{driver}-{node}"


def feature_object(name: str, node: str, labels: Mapping[str, str], *, owner: Mapping[str, str] | None) -> Wire:
    """Return a NodeFeature that asks for these labels. `owner` is the name and UID of a ServiceAccount beside it."""
    meta: Wire = {"name": name, "labels": {_NODE_LABEL: node}}
    if owner:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "ServiceAccount", **owner}]
    # Empty features are written out: releases up to 0.13 require them.
    nothing: Wire = {"flags": {}, "attributes": {}, "instances": {}}
    spec = {"labels": dict(labels), "features": nothing}
    return {"apiVersion": _API_VERSION, "kind": "NodeFeature", "metadata": meta, "spec": spec}


def _account(authorization: str) -> dict[str, str] | None:
    """Return the name and UID of a token's ServiceAccount, or None for other tokens.

    The token is not verified: it is the agent's own, and the policy compares the name.
    """
    parts = authorization.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        account = claims["kubernetes.io"]["serviceaccount"]
        return {"name": str(account["name"]), "uid": str(account["uid"])}
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _spread(seconds: float) -> float:
    """Return a random time near `seconds`, so that agents that start together do not all write at the same moment."""
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
