"""Checks of the agent's pods, and of what runs beside them, as the API server shows them.

Pure. In: `ClusterEvidence`, the current time. Out: findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dra_driver.doctor.checks.claim_checks import PATIENCE_SECONDS, seconds_since
from dra_driver.doctor.cluster_evidence import ClusterEvidence, agents
from dra_driver.doctor.finding import Finding
from dra_driver.model.wire import Wire

_EXPORTER = "dcgm-exporter"


def check_agents(cluster: ClusterEvidence, now: datetime) -> Iterator[Finding]:
    """Yield a finding for each pod of this driver that is still not ready after it had the time to start."""
    for pod in cluster.of("pods"):
        labels = pod["metadata"].get("labels") or {}
        if labels.get("app.kubernetes.io/name") != "dra-driver" or _is_ready(pod) or _is_starting(pod, now):
            continue
        namespace, name = pod["metadata"].get("namespace"), pod["metadata"]["name"]
        node = (pod.get("spec") or {}).get("nodeName") or "no node"
        yield Finding(
            "agent-not-ready", f"pod {namespace}/{name}", f"on {node}: {_why(pod)}", "status.conditions",
            f"kubectl logs -n {namespace} {name}; its /readyz shows what it is waiting for",
        )  # fmt: skip


def check_metric_sources(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each exporter that publishes the metrics that our agents publish under the same names."""
    daemonsets = cluster.of("daemonsets")
    if not any(_publishes_common_names(one) for one in agents(daemonsets)):
        return
    for other in daemonsets:
        if _EXPORTER in " ".join(str(container.get("image") or "") for container in _containers(other)):
            name = f"{other['metadata'].get('namespace')}/{other['metadata']['name']}"
            yield Finding(
                "metrics-twice", f"DaemonSet {name}", "it and the agents both publish DCGM_FI_*: sums count twice",
                "image and variables of the DaemonSets", "set telemetry.dcgmNames=false, or remove the exporter",
            )  # fmt: skip


def _publishes_common_names(daemonset: Wire) -> bool:
    for container in _containers(daemonset):
        env = {entry.get("name"): entry.get("value") for entry in container.get("env") or ()}
        is_on = env.get("TELEMETRY", "basic") != "off" and env.get("DCGM_NAMES", "true") != "false"
        if env.get("METRICS_ADDRESS") and is_on:
            return True
    return False


def _containers(daemonset: Wire) -> list[Wire]:
    return ((daemonset.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or []


def _is_ready(pod: Wire) -> bool:
    status = pod.get("status") or {}
    conditions = status.get("conditions") or ()
    is_ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return is_ready or status.get("phase") == "Succeeded" or "deletionTimestamp" in pod["metadata"]


def _is_starting(pod: Wire, now: datetime) -> bool:
    """Return whether a pod is new and none of its containers has restarted: a rollout is not a fault."""
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    age = seconds_since(str(pod["metadata"].get("creationTimestamp") or ""), now)
    return 0 < age < PATIENCE_SECONDS and not any(one.get("restartCount") for one in states)


def _why(pod: Wire) -> str:
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return f"{waiting.get('reason')}, {container.get('restartCount', 0)} restarts"
    unready = [one for one in status.get("conditions") or () if one.get("status") == "False"]
    return next((str(one.get("message") or one.get("reason")) for one in unready), "not ready")
