"""A small cluster for the console: a node with two GPUs, one of them held, and a claim and a pod that wait."""

from __future__ import annotations

from typing import Any

from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, CLASSES, EVENTS, PODS, SLICES
from tests.support.api.embedded_client import slice_wire

SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
DRIVER, POOL = "gpu.example.com", "n1/gpu.example.com"


def fill(api: EmbeddedApi) -> None:
    """Create everything."""
    for name in ("team-a", "team-b"):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    api.request("POST", CLASSES.path(), body={"metadata": {"name": "any"}, "spec": {}})
    api.request("POST", SLICES.path(), body=slice_wire(devices=[{"name": "gpu-a"}, {"name": "gpu-b"}]))
    add_claim(api, "team-a", "mine", "gpu-a", pods=["user"])
    add_claim(api, "team-b", "theirs", "gpu-b")
    add_claim(api, "team-a", "waiting")


def add_claim(api: EmbeddedApi, namespace: str, name: str, device: str = "", pods: list[str] | None = None) -> None:
    """Create a claim, allocated if a device is given."""
    made: dict[str, Any] = api.request("POST", CLAIMS.path(namespace), body={"metadata": {"name": name}, "spec": SPEC})
    if device:
        result = {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": device}
        users = [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in pods or ()]
        made["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
        api.request("PUT", f"{CLAIMS.path(namespace, name)}/status", body=made)


def add_pod(api: EmbeddedApi, namespace: str, name: str, claim: str, secret: str = "") -> None:
    """Create a pod that uses a claim, with something in its environment that no page may show."""
    container = {"name": "main", "image": "busybox", "env": [{"name": "TOKEN", "value": secret}]}
    container["resources"] = {"claims": [{"name": "gpu"}]}  # type: ignore[assignment]
    spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}
    made = api.request("POST", PODS.path(namespace), body={"metadata": {"name": name}, "spec": spec})
    made["status"] = {"phase": "Pending"}
    api.request("PUT", f"{PODS.path(namespace, name)}/status", body=made)


def add_event(api: EmbeddedApi, about: str, reason: str, message: str, time: str = "2026-11-28T09:00:00Z") -> None:
    """Create an Event about KIND/NAMESPACE/NAME, as the kubelet and agents do."""
    kind, namespace, name = about.split("/")
    body = {"metadata": {"generateName": "event-"}, "involvedObject": {"kind": kind, "name": name}, "reason": reason}
    body |= {"message": message, "lastTimestamp": time, "type": "Normal" if reason == "Scheduled" else "Warning"}
    api.request("POST", EVENTS.path(namespace), body={**body, "source": {"component": "gpu.example.com"}})


def taint(api: EmbeddedApi, device: str) -> None:
    """Taint a device in its slice, as the agent does when a GPU is lost."""
    [one] = api.items(SLICES)
    devices = [
        {**wire, "taints": [{"key": "gpu.example.com/lost", "effect": "NoExecute"}]} if wire["name"] == device else wire
        for wire in one["spec"]["devices"]
    ]
    body = {**one, "spec": {**one["spec"], "devices": devices}}
    api.request("PUT", SLICES.path(name=one["metadata"]["name"]), body=body)
