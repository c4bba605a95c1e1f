"""A small client of the API server for the scenarios: objects in, objects out, refusals as exceptions.

In: an address, a CA, a token. Out: dicts as the server sent them. Nothing is cached, and writes are never retried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import urllib3

from cluster.sandbox import until

Object = dict[str, Any]

# kind → (path before the namespace, plural, namespaced)
KINDS = {
    "Namespace": ("/api/v1", "namespaces", False),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "Job": ("/apis/batch/v1", "jobs", True),
    "Event": ("/api/v1", "events", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "Secret": ("/api/v1", "secrets", True),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "ResourceQuota": ("/api/v1", "resourcequotas", True),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses", False),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices", False),
    "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims", True),
    "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates", True),
}


class Refused(Exception):
    """The API server answered with an error status."""

    def __init__(self, code: int, status: Object) -> None:
        self.code = code
        self.reason = status.get("reason", "")
        super().__init__(f"{code} {self.reason}: {status.get('message', status)}")


class Api:
    """One user's view of the API server."""

    def __init__(self, server: str, ca: Path, token: str) -> None:
        self.server = server
        self.token = token
        self.ca = ca
        self._pool = urllib3.PoolManager(ca_certs=str(ca), retries=False, maxsize=8)

    def as_user(self, token: str) -> Api:
        """Return the same server seen by another user."""
        return Api(self.server, self.ca, token)

    def call(self, method: str, path: str, body: object = None, media: str = "application/json", **query: str) -> Any:
        """Send one request; return the decoded answer, or its text where it is not JSON.

        Raises: Refused on an error status, urllib3's errors when there is no answer.
        """
        answer = self._request(
            method,
            self.server + path + ("?" + "&".join(f"{key}={value}" for key, value in query.items()) if query else ""),
            body=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": media, "Accept": "application/json"},
            timeout=urllib3.Timeout(30),
        )
        text = answer.data.decode()
        # Go by the content type: a container's log may look like JSON.
        decoded = json.loads(text) if answer.headers.get("Content-Type", "").startswith("application/json") else text
        if answer.status >= 400:
            raise Refused(answer.status, decoded if isinstance(decoded, dict) else {"message": text})
        return decoded

    def _request(self, method: str, *arguments: Any, **named: Any) -> urllib3.BaseHTTPResponse:
        """Send a request; a read without an answer is sent again, because a busy machine may be slow."""
        for attempt in (1, 2, 3):
            try:
                return self._pool.request(method, *arguments, **named)
            except urllib3.exceptions.HTTPError:
                if method != "GET" or attempt == 3 or "/readyz" in arguments[0]:
                    raise
        raise AssertionError("not reached")

    def path(self, kind: str, name: str = "", namespace: str = "") -> str:
        """Return the path of a collection, or of one object in it."""
        prefix, plural, namespaced = KINDS[kind]
        inside = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return f"{prefix}{inside}/{plural}" + (f"/{name}" if name else "")

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        """Return one object."""
        return self.call("GET", self.path(kind, name, namespace))  # type: ignore[no-any-return]

    def find(self, kind: str, name: str, namespace: str = "") -> Object | None:
        """Return one object, or None where there is none."""
        try:
            return self.get(kind, name, namespace)
        except Refused as refusal:
            if refusal.code == 404:
                return None
            raise

    def list(self, kind: str, namespace: str = "", **query: str) -> list[Object]:
        """Return all objects of a kind, filtered by `fieldSelector` or `labelSelector`."""
        return self.call("GET", self.path(kind, namespace=namespace), **query)["items"]  # type: ignore[no-any-return]

    def create(self, content: Mapping[str, Any], **query: str) -> Object:
        """Create an object."""
        meta = content["metadata"]
        return self.call("POST", self.path(content["kind"], namespace=meta.get("namespace", "")), content, **query)  # type: ignore[no-any-return]

    def replace(self, content: Mapping[str, Any]) -> Object:
        """Replace an object (PUT)."""
        meta = content["metadata"]
        return self.call("PUT", self.path(content["kind"], meta["name"], meta.get("namespace", "")), content)  # type: ignore[no-any-return]

    def patch(self, kind: str, name: str, namespace: str, change: Object, subresource: str = "") -> Object:
        """Merge a change into an object."""
        path = self.path(kind, name, namespace) + (f"/{subresource}" if subresource else "")
        return self.call("PATCH", path, change, "application/merge-patch+json")  # type: ignore[no-any-return]

    def delete(self, kind: str, name: str, namespace: str = "", grace: int | None = None) -> None:
        """Delete an object; it is no error if it is gone already."""
        query = {} if grace is None else {"gracePeriodSeconds": str(grace)}
        try:
            self.call("DELETE", self.path(kind, name, namespace), **query)
        except Refused as refusal:
            if refusal.code != 404:
                raise

    def ready(self) -> bool:
        """Return whether the API server answers and is ready."""
        try:
            return bool(self.call("GET", "/readyz") == "ok")
        except (Refused, urllib3.exceptions.HTTPError):
            return False

    def wait(
        self, kind: str, name: str, namespace: str, what: str, probe: Callable[[Object], Any], *, seconds: float = 60
    ) -> Object:
        """Wait until one object exists and `probe` holds for it; return the object."""

        def look() -> Object | None:
            found = self.find(kind, name, namespace)
            assert found is not None, f"no {kind} {namespace}/{name}"
            assert probe(found), json.dumps(found.get("status"))[:1500]
            return found

        found = until(f"{kind} {namespace}/{name} {what}", look, seconds, every=0.2)
        assert found is not None
        return found

    def wait_gone(self, kind: str, name: str, namespace: str = "", seconds: float = 60) -> None:
        """Wait until an object is gone."""
        until(f"{kind} {namespace}/{name} gone", lambda: self.find(kind, name, namespace) is None, seconds, every=0.2)
