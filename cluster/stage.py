"""One scenario's view of the cluster: run pods in its namespace, and compare what their containers saw with the API.

In: a cluster, a node, a namespace. Out: objects, and the assertions that every scenario makes. Expectations of a single
scenario stay in the scenario.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster import podresources
from cluster.api import Object, Refused
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.sandbox import until

# A pod normally runs after two seconds. But a kubelet that hit a race of its own (the API server's node authorizer may
# learn of a claim later than the kubelet) retries only after 60 to 90 seconds.
PATIENCE = 130


# Namespaces become part of other names: a tenant's class is an extended resource of up to 63 characters, of which it
# adds 27 of its own. This many leave room for these and for the number.
_NAME_CHARS = 32


def namespace_name(scenario: str, number: int) -> str:
    """Return the name of a scenario's namespace: the beginning of the scenario's name, and a number."""
    plain = re.sub(r"[^a-z0-9]+", "-", scenario.removeprefix("test_").lower())
    return f"{plain[:_NAME_CHARS].strip('-')}-{number}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a container saw when it started."""

    environment: dict[str, str]
    nodes: dict[str, str]  # path → "major:minor", hexadecimal
    mounts: frozenset[str]
    at: int  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Stage:
    """A namespace on a cluster, and the node to look at."""

    cluster: Cluster
    node: Node
    namespace: str

    def on(self, node: Node) -> Stage:
        """Return a stage in the same namespace for another node."""
        return Stage(self.cluster, node, self.namespace)

    def create(self, *contents: Mapping[str, Any]) -> None:
        """Create objects."""
        for content in contents:
            self.cluster.api.create(content)

    def running(self, name: str, seconds: float = PATIENCE) -> Object:
        """Wait until a pod runs; a failed pod fails the scenario at once."""
        return self.pod(name, "Running", seconds)

    def succeeded(self, name: str, seconds: float = PATIENCE) -> Object:
        """Wait until a pod has ended successfully."""
        return self.pod(name, "Succeeded", seconds)

    def pod(self, name: str, phase: str, seconds: float = PATIENCE) -> Object:
        """Wait for a pod's phase; if it does not come, the error has the pod's events."""

        def reached(pod: Object) -> bool:
            now = pod.get("status", {}).get("phase")
            return now == phase and (phase != "Running" or _all_ready(pod))

        try:
            return self.cluster.api.wait("Pod", name, self.namespace, phase, reached, seconds=seconds)
        except Exception as error:
            error.add_note("events:\n" + "\n".join(self.events(name)))
            error.add_note("the kubelet's last complaints:\n" + "\n".join(self.complaints()))
            raise

    def events(self, name: str) -> list[str]:
        """Return the events about an object, as lines."""
        found = self.cluster.api.list("Event", self.namespace, fieldSelector=f"involvedObject.name={name}")
        return [f"{event.get('reason')}: {event.get('message')} ({event.get('count', 1)} times)" for event in found]

    def complaints(self) -> list[str]:
        """Return the last warnings and errors in the kubelet's log."""
        lines = self.node.kubelet.tail(300).splitlines()
        return [line[:600] for line in lines if line[:1] in {"E", "W"}][-5:]

    def delete_pod(self, name: str, seconds: float = 60) -> None:
        """Delete a pod and wait until it is gone, Unprepare included."""
        self.cluster.api.delete("Pod", name, self.namespace)
        self.cluster.api.wait_gone("Pod", name, self.namespace, seconds=seconds)

    def log(self, name: str, container: str) -> str:
        """Return what a container has written so far; empty while the kubelet does not know the container."""
        path = self.cluster.api.path("Pod", name, self.namespace) + "/log"
        try:
            return str(self.cluster.api.call("GET", path, container=container))
        except Refused:
            return ""

    def seen(self, name: str, container: str = "main") -> Seen:
        """Wait until a container has reported what it sees, and return that."""
        text = until(
            f"{name}/{container} has reported what it sees",
            lambda: next((text for text in [self.log(name, container)] if "\nshown" in text), ""),
            20,
        )
        words = [line.split(" ") for line in text.splitlines()]
        return Seen(
            environment=dict(re.findall(r"^([A-Za-z_]\w*)=(.*)$", text, re.MULTILINE)),
            nodes={line[1]: line[2] for line in words if line[0] == "node"},
            mounts=frozenset(line[1] for line in words if line[0] == "mount"),
            at=next(int(line[1]) for line in words if line[0] == "at"),
        )

    def claims(self, pod: Object) -> dict[str, Object]:
        """Return a pod's claims by the pod's own names for them."""
        made = {item["name"]: item.get("resourceClaimName") for item in pod["status"].get("resourceClaimStatuses", [])}
        names = {
            entry["name"]: entry.get("resourceClaimName") or made.get(entry["name"])
            for entry in pod["spec"].get("resourceClaims", [])
        }
        return {own: self.cluster.api.get("ResourceClaim", name, self.namespace) for own, name in names.items() if name}

    def devices(self, pod: Object) -> list[str]:
        """Return the names of the devices allocated to a pod."""
        return [result["device"] for claim in self.claims(pod).values() for result in results(claim)]

    def check(self, name: str, seconds: float = PATIENCE) -> Object:
        """Wait until a pod runs, and compare everything that is reported of its devices; return the pod."""
        self.running(name, seconds)
        return self.compare(name)

    def compare(self, name: str) -> Object:
        """Check that kubelet, allocation, CDI files and containers agree on a pod's devices; return the pod."""
        pod = self.cluster.api.get("Pod", name, self.namespace)
        claims = self.claims(pod)
        containers = pod["spec"]["containers"] + _sidecars(pod)
        # The kubelet reports every device of a claim that a container uses, even when the container names one request.
        wanted = {
            (container["name"], claims[used["name"]]["metadata"]["name"], *_place(result))
            for container in containers
            for used in container["resources"].get("claims", [])
            for result in results(claims[used["name"]])
        }
        # A kubelet that was just started does not know its pods at once.
        held = until(f"the kubelet holds what is allocated to {name}", lambda: self._held(name, wanted), 15)
        edits = self.cdi_edits()
        for container in containers:
            asked = {
                _place(result)
                for used in container["resources"].get("claims", [])
                for result in results(claims[used["name"]])
                if used.get("request") in (None, result["request"].partition("/")[0])
            }
            ids = {one for item in held if (item.driver, item.pool, item.device) in asked for one in item.cdi}
            assert ids or not container["resources"], f"{container['name']} uses a claim and was given no CDI device"
            assert ids <= set(edits), f"no CDI file defines {ids - set(edits)}"
            self.check_edits(name, container["name"], [edits[one] for one in ids])
        return pod

    def _held(self, name: str, wanted: set[tuple[str, ...]]) -> list[podresources.Held]:
        held = podresources.held(self.node.kubelet_root, self.namespace, name)
        reported = {(item.container, item.claim, item.driver, item.pool, item.device) for item in held}
        assert reported == wanted, f"the kubelet holds {reported}, allocated is {wanted}"
        return held

    def check_edits(self, name: str, container: str, edits: list[dict[str, Any]]) -> None:
        """Check that a container got every variable, device node and mount that CDI promises it."""
        seen = self.seen(name, container)
        for edit in edits:
            for variable in edit.get("env", []):
                key, _, value = variable.partition("=")
                assert seen.environment.get(key) == value, f"{variable} did not reach {name}/{container}"
            for node in edit.get("deviceNodes", []):
                numbers = seen.nodes.get(node["path"])
                assert numbers, f"{node['path']} did not reach {name}/{container}: {sorted(seen.nodes)}"
                if "major" in node:
                    assert numbers == f"{node['major']:x}:{node.get('minor', 0):x}", f"{node} is {numbers}"
            for mount in edit.get("mounts", []):
                assert mount["containerPath"] in seen.mounts, f"{mount['containerPath']} is not mounted in {name}"

    def cdi_edits(self) -> dict[str, dict[str, Any]]:
        """Return every CDI device of the node by its full name, with the edits a container gets."""
        edits: dict[str, dict[str, Any]] = {}
        for file in self.node.cdi.iterdir():
            try:
                text = file.read_text()
            except (FileNotFoundError, IsADirectoryError):  # another pod has ended meanwhile; files of metadata
                continue
            # JSON is YAML, but is read a hundred times as fast, which matters with fifty pods.
            spec = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
            for device in spec.get("devices") or []:
                shared, own = spec.get("containerEdits", {}), device.get("containerEdits", {})
                merged = {key: [*shared.get(key, []), *own.get(key, [])] for key in ("env", "deviceNodes", "mounts")}
                edits[f"{spec['kind']}={device['name']}"] = merged
        return edits

    def pending(self, name: str, message: str, seconds: float = 30) -> str:
        """Wait until the scheduler has reported why a pod does not fit, and return its message."""

        def refused(pod: Object) -> bool:
            return bool(re.search(message, _unschedulable(pod)))

        pod = self.cluster.api.wait("Pod", name, self.namespace, f"Pending with {message!r}", refused, seconds=seconds)
        assert pod["status"]["phase"] == "Pending"
        return _unschedulable(pod)

    def shim(self, name: str) -> int:
        """Return the process that holds a pod's containers for the runtime."""
        uid = self.cluster.api.get("Pod", name, self.namespace)["metadata"]["uid"]
        (inside,) = (
            folder for folder in self.cluster.sandbox.tracking.rglob(f"*{uid}*") if folder.name.startswith("pod")
        )
        held = next(int(pid) for file in inside.rglob("cgroup.procs") for pid in file.read_text().split())
        status = Path(f"/proc/{held}/status").read_text()
        return int(re.findall(r"^PPid:\t(\d+)", status, re.MULTILINE)[0])

    def restart_kubelet(self) -> None:
        """Restart the kubelet and wait until its node is Ready again."""
        self.node.kubelet.stop()
        self.node.kubelet.start()
        port = 10248 + 10 * self.node.index
        until("the kubelet is healthy", lambda: self.node.sandbox.fetch(port, "/healthz") == "ok", 30)


def results(claim: Object) -> list[dict[str, Any]]:
    """Return the allocated devices of a claim."""
    found: list[dict[str, Any]] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return found


def _sidecars(pod: Object) -> list[Object]:
    """Return the init containers that keep running beside the others."""
    return [one for one in pod["spec"].get("initContainers", []) if one.get("restartPolicy") == "Always"]


def _place(result: Mapping[str, str]) -> tuple[str, str, str]:
    return result["driver"], result["pool"], result["device"]


def _all_ready(pod: Object) -> bool:
    return all(status["ready"] for status in pod["status"].get("containerStatuses", [{"ready": False}]))


def _unschedulable(pod: Object) -> str:
    conditions = pod.get("status", {}).get("conditions", [])
    return next((item.get("message", "") for item in conditions if item["type"] == "PodScheduled"), "")
