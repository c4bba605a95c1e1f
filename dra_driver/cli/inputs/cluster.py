"""The live cluster as an input: its slices, classes and claims, read with the user's kubeconfig or a ServiceAccount.

In: the path of a kubeconfig. Out: wire objects. It only reads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver.cli.inputs.devices import Fleet, fleet_of_slices
from dra_driver.cli.inputs.workloads import Workload
from dra_driver.embedded.scheduling.pod_templates import templates_of
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import CLAIMS, CLASSES, EVENTS, SLICES, TEMPLATES, WORKLOADS, named, within
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import Wire

if TYPE_CHECKING:
    from dra_driver.cli.inputs.world import World

_SECONDS = 30.0


class Cluster:
    """A connection to one API server."""

    def __init__(self, kubeconfig: str | None) -> None:
        from dra_driver.kube.credentials import load

        self.name = kubeconfig or "in-cluster"
        self._api = KubeApi(load(kubeconfig))

    def fleet(self) -> Fleet:
        """Read all ResourceSlices. Raises: ApiError, InputError."""
        slices = [(f"ResourceSlice {wire['metadata']['name']}", wire) for wire in self._list(SLICES)]
        return fleet_of_slices(slices, f"cluster ({self.name})")

    def classes(self) -> list[Wire]:
        """Read all DeviceClasses. Raises: ApiError."""
        return [{"kind": "DeviceClass", **wire} for wire in self._list(CLASSES)]

    def claims(self) -> list[Wire]:
        """Read all ResourceClaims of all namespaces. Raises: ApiError."""
        return self._list(CLAIMS)

    def templates(self) -> list[Wire]:
        """Read all ResourceClaimTemplates of all namespaces. Raises: ApiError."""
        return self._list(TEMPLATES)

    def find(self, kind: str, namespace: str, name: str) -> Wire | None:
        """Return one object of the kind whose objects are listed at a path; None if there is none. Raises: ApiError."""
        path = named(within(kind, namespace), name)
        try:
            return self._api.request("GET", path, timeout_s=_SECONDS)
        except ApiError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    def kubernetes(self) -> str:
        """Return the server's Kubernetes version, such as "1.35". Raises: ApiError."""
        version = self._api.server_version()
        return f"{version.major}.{version.minor}"

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def _list(self, path: str) -> list[Wire]:
        """List all objects, page by page."""
        from dra_driver.cli.inputs.cluster_lists import read_list

        return read_list(self._api, path, f"{path.rpartition('/')[2]} read")


_SHORT = {"deploy": "deployment", "sts": "statefulset", "ds": "daemonset", "rs": "replicaset", "cj": "cronjob"}
_MOST_EVENTS = "500"


def add_cluster_workload(world: World, kubeconfig: str | None, asked: Sequence[str], namespace: str) -> None:
    """Add a workload of a cluster to a world: with the pods that are there, or else its template.

    Raises: ApiError when the cluster can't be asked.
    """
    kind = _SHORT.get(asked[0].lower(), asked[0].lower().removesuffix("s"))
    path = WORKLOADS.get(kind)
    if path is None:
        return
    wire = _read(kubeconfig, named(within(path, namespace), asked[1]))
    for template in templates_of(wire) if wire is not None else ():
        labels = template.pod["metadata"].get("labels") or {}
        there = [pod for pod in world.of("Pod") if _is_made_of(pod, namespace, labels)]
        if there:
            world.workloads.append(Workload(template, tuple(there)))
        else:
            world.templates.append(template)


def _is_made_of(pod: Wire, namespace: str, labels: Wire) -> bool:
    metadata = pod["metadata"]
    if not labels or metadata.get("namespace") != namespace:
        return False
    return bool(labels.items() <= (metadata.get("labels") or {}).items())


def last_event(kubeconfig: str | None, namespace: str, name: str) -> str:
    """Return the last event of a pod, reason and message; "" where there is none or it may not be read."""
    selector = {"fieldSelector": f"involvedObject.kind=Pod,involvedObject.name={name}", "limit": _MOST_EVENTS}
    try:
        answer = _read(kubeconfig, within(EVENTS, namespace), selector)
    except ApiError:
        return ""
    events = [one for one in (answer or {}).get("items") or [] if "kubelet" in _reporters(one)]
    if not events:
        return ""
    latest = max(events, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
    return f"{latest.get('reason')}: {latest.get('message')}"


def _reporters(event: Wire) -> set[str | None]:
    return {(event.get("source") or {}).get("component"), event.get("reportingComponent")}


def _read(kubeconfig: str | None, path: str, query: dict[str, str] | None = None) -> Wire | None:
    """Read one object; None where there is none. Raises: ApiError."""
    from dra_driver.kube.credentials import load

    api = KubeApi(load(kubeconfig))
    try:
        return api.request("GET", path, query=query or {}, timeout_s=_SECONDS)
    except ApiError as error:
        if error.code == NOT_FOUND:
            return None
        raise
    finally:
        api.close()


def default_kubeconfig() -> str | None:
    """Return the kubeconfig that kubectl would use, or None if there is none."""
    for path in os.environ.get("KUBECONFIG", "").split(os.pathsep):
        if path:
            return path
    usual = Path.home() / ".kube" / "config"
    return str(usual) if usual.is_file() else None
