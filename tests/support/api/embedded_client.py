"""A client of the embedded API that shows status and body, and the smallest objects that it accepts."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlencode

from dra_driver.simulator.api_server import EmbeddedApi

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


class Client:
    """A keep-alive HTTP client."""

    def __init__(self, api: EmbeddedApi, token: str | None = None) -> None:
        self._api = api
        self._token = api.token if token is None else token
        self._connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=60)

    def __call__(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json", **query: str
    ) -> tuple[int, Any]:
        self._send(self._connection, method, path, body, content_type, query)
        answer = self._connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data.startswith(b"{") else data

    def watch(self, path: str, **query: str) -> Watch:
        connection = http.client.HTTPConnection(self._api.url.removeprefix("http://"), timeout=60)
        self._send(connection, "GET", path, None, "application/json", {"watch": "1", **query})
        return Watch(connection)

    def _send(self, connection: Any, method: str, path: str, body: Any, content_type: str, query: Any) -> None:  # noqa: PLR0917
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        target = f"{path}?{urlencode(query)}" if query else path
        connection.request(method, target, None if body is None else json.dumps(body), headers)


class Watch:
    """An open watch."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self.answer = connection.getresponse()

    def next(self) -> dict[str, Any] | None:
        line = self.answer.readline()
        return json.loads(line) if line else None

    def rest(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.answer]

    def close(self) -> None:
        self._connection.close()


def slice_wire(name: str = "s", *, node: str = "n1", driver: str = "gpu.example.com", **spec: Any) -> dict[str, Any]:
    pool = {"name": f"{node}/{driver}", "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": driver, "nodeName": node, "pool": pool, **spec}}


def claim_wire(name: str = "c", **devices: Any) -> dict[str, Any]:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": requests, **devices}}}
