"""Workloads of a live cluster: the pods of a workload, or its template if there are none; and a pod's last event.

In: access to a cluster, and what was asked for. Out: workloads of a `World`. It only reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.embedded.scheduling.pod_templates import templates_of
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.paths import EVENTS, WORKLOADS, named, within
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import Wire
from dra_driver.views.access import ClusterAccess
from dra_driver.views.worlds.workload_pods import Workload
from dra_driver.views.worlds.workloads import SHORT_KINDS
from dra_driver.views.worlds.world import World

_SECONDS = 30.0
_MAX_EVENTS = "500"


def add_cluster_workload(world: World, access: ClusterAccess, asked: Sequence[str], namespace: str) -> None:
    """Add a workload of a cluster to a world: its pods if there are any, otherwise its template.

    Raises: ApiError if the cluster can't be asked.
    """
    word = asked[0].lower().partition(".")[0]  # kubectl accepts deployments.apps as well
    path = WORKLOADS.get(SHORT_KINDS.get(word, word.removesuffix("s")))
    if path is None:
        return
    wire = _read(access, named(within(path, namespace), asked[1]))
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


def last_event(access: ClusterAccess, namespace: str, name: str) -> str:
    """Return the last event of a pod, reason and message; "" if there is none or it may not be read."""
    selector = {"fieldSelector": f"involvedObject.kind=Pod,involvedObject.name={name}", "limit": _MAX_EVENTS}
    try:
        answer = _read(access, within(EVENTS, namespace), selector)
    except ApiError:
        return ""
    events = [one for one in (answer or {}).get("items") or [] if "kubelet" in _reporters(one)]
    if not events:
        return ""
    latest = max(events, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
    return f"{latest.get('reason')}: {latest.get('message')}"


def _reporters(event: Wire) -> set[str | None]:
    return {(event.get("source") or {}).get("component"), event.get("reportingComponent")}


def _read(access: ClusterAccess, path: str, query: dict[str, str] | None = None) -> Wire | None:
    """Read one object; return None if there is none. Raises: ApiError."""
    api = access.connect()
    try:
        return api.request("GET", path, query=query or {}, timeout_s=_SECONDS)
    except ApiError as error:
        if error.code == NOT_FOUND:
            return None
        raise
    finally:
        api.close()
