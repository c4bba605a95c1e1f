"""Checks of ResourceClaims: not prepared in time, held by pods that have ended, on devices that are gone.

Pure. In: `ClusterEvidence`, the current time, and `NodeEvidence` if the node's own ledger can be read. Out: findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.doctor.node_evidence import NodeEvidence
from dra_driver.model.wire import ClaimWire, Wire

PATIENCE_SECONDS = 60.0  # a pod may take this long to start, or to be cleaned up, without anything being wrong
_QUOTE_CHARS = 400  # how much is quoted of another component's message
_ENDED = frozenset({"Succeeded", "Failed"})


def check_reservations(cluster: ClusterEvidence, now: datetime) -> Iterator[Finding]:
    """Yield a finding for each claim that is reserved by a pod that has ended or is gone."""
    if not cluster.has("pods", "claims"):
        return
    pods = {one["metadata"].get("uid"): one for one in cluster.of("pods")}
    for claim in _allocated(cluster):
        for user in claim["status"].get("reservedFor") or ():
            if user.get("resource") != "pods":
                continue
            pod = pods.get(user.get("uid"))
            phase = _phase(pod) if pod else ""
            if pod is None or (phase in _ENDED and _ended_seconds_ago(pod, now) > PATIENCE_SECONDS):
                yield Finding(
                    "claim-finished-pod", f"claim {_full_name(claim)}",
                    f"is reserved by pod {user['name']}, which {f'has ended ({phase})' if pod else 'is gone'}",
                    "status.reservedFor beside GET pods",
                    "the resource claim controller of kube-controller-manager frees it: check its log if this persists",
                )  # fmt: skip


def check_starting_pods(cluster: ClusterEvidence, now: datetime) -> Iterator[Finding]:
    """Yield a finding for each pod that waits for devices or for their preparation."""
    claims = {(one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in _allocated(cluster)}
    for pod in cluster.of("pods"):
        spec, namespace = pod.get("spec") or {}, pod["metadata"].get("namespace")
        if _phase(pod) != "Pending" or not spec.get("resourceClaims"):
            continue
        subject = f"pod {namespace}/{pod['metadata']['name']}"
        if not spec.get("nodeName"):
            yield Finding(
                "claim-waits", subject, f"waits for devices{_quoted(_refusal(pod))}",
                "status.phase is Pending, spec.nodeName is not set",
                f"dra-driver explain pod {pod['metadata']['name']} -n {namespace} shows why",
            )  # fmt: skip
            continue
        names = [claims[key] for name in _claims_of(pod) if (key := (namespace, name)) in claims]
        mine = [claim for claim in names if _devices_of(claim, cluster.driver)]
        waited = seconds_since(_scheduled_at(pod), now)
        if mine and waited > PATIENCE_SECONDS:
            listed = ", ".join(_full_name(claim) for claim in mine)
            yield Finding(
                "claim-not-prepared", subject,
                f"has been on {spec['nodeName']} for {waited:.0f} s; it uses {listed}{_quoted(_event(cluster, pod))}",
                "status.phase is Pending, its claims are allocated",
                "docs/error-codes.md explains the error code; `dra-driver doctor` on that node shows more",
            )  # fmt: skip


def check_devices(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each claim that holds a device that is not published."""
    if not cluster.has("slices", "claims"):
        return
    published = {
        (one["spec"]["pool"]["name"], device["name"])
        for one in cluster.of("slices")
        if one["spec"].get("driver") == cluster.driver
        for device in one["spec"].get("devices") or ()
    }
    pools = {pool for pool, _ in published}
    for claim in _allocated(cluster):
        held = _devices_of(claim, cluster.driver)
        gone = [name for name in held if name not in published and name[0] in pools]
        for pool in dict.fromkeys(pool for pool, _ in held if pool not in pools):
            yield _pool_gone(claim, pool, [device for other, device in held if other == pool])
        if gone:
            yield Finding(
                "claim-device-gone", f"claim {_full_name(claim)}",
                f"holds {', '.join('/'.join(name) for name in gone)}, which is not published",
                "status.allocation beside GET resourceslices",
                "the GPU may be lost, or published by a driver of another name; end the pod if it does not come back",
            )  # fmt: skip


def _pool_gone(claim: ClaimWire, pool: str, devices: list[str]) -> Finding:
    node = pool.partition("/")[0]
    return Finding(
        "claim-pool-gone", f"claim {_full_name(claim)}",
        f"holds {', '.join(devices)} of pool {pool}, of which no device is published any more",
        "status.allocation beside GET resourceslices",
        f"check that node {node} exists and that the agent runs there; its running pods are not affected",
    )  # fmt: skip


def check_ledger(cluster: ClusterEvidence, node: NodeEvidence) -> Iterator[Finding]:
    """Yield a finding for each claim that is prepared on this node but does not exist in the cluster."""
    if node.rows is None or not cluster.has("claims"):
        return
    known = {one["metadata"].get("uid") for one in cluster.of("claims")}
    for row in node.rows:
        if row.uid not in known:
            yield Finding(
                "claim-gone", f"claim {row.name}", f"is gone, but {', '.join(row.devices) or 'it'} is still prepared",
                "the ledger beside GET resourceclaims",
                "the agent unprepares it once the claim has been gone for 5 minutes and nothing runs on it",
            )  # fmt: skip


def _allocated(cluster: ClusterEvidence) -> list[ClaimWire]:
    return [one for one in cluster.of("claims") if (one.get("status") or {}).get("allocation")]


def _devices_of(claim: ClaimWire, driver: str) -> list[tuple[str, str]]:
    """Return pool and name of each device of one driver that a claim holds."""
    results = (claim["status"]["allocation"].get("devices") or {}).get("results") or ()
    return [(one["pool"], one["device"]) for one in results if one.get("driver") == driver]


def _claims_of(pod: Wire) -> list[str]:
    """Return the names of a pod's claims: made from templates, named directly, or made for extended resources."""
    status = pod.get("status") or {}
    names = [one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()]
    names += [one.get("resourceClaimName") for one in (pod.get("spec") or {}).get("resourceClaims") or ()]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    return [str(name) for name in dict.fromkeys(names) if name]


def _scheduled_at(pod: Wire) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled":
            return str(condition.get("lastTransitionTime") or "")
    return ""


def _ended_seconds_ago(pod: Wire, now: datetime) -> float:
    """Return how many seconds ago a pod's last container ended; infinity if no end is recorded."""
    states = [(one.get("state") or {}).get("terminated") or {} for one in pod["status"].get("containerStatuses") or ()]
    ends = [str(one["finishedAt"]) for one in states if one.get("finishedAt")]
    return seconds_since(max(ends), now) if ends else float("inf")


def _refusal(pod: Wire) -> str:
    """Return the scheduler's message about a pod; "" if there is none."""
    found = ((pod.get("status") or {}).get("conditions")) or ()
    messages = [str(one.get("message") or "") for one in found if one.get("type") == "PodScheduled"]
    return messages[-1] if messages else ""


def _event(cluster: ClusterEvidence, pod: Wire) -> str:
    """Return the message of the kubelet's last event about preparing a pod's claims; "" if there is none."""
    uid = pod["metadata"].get("uid")
    mine = [one for one in cluster.of("events") if (one.get("involvedObject") or {}).get("uid") == uid]
    last = max(mine, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""), default={})
    return str(last.get("message") or "")


def _quoted(message: str) -> str:
    plain = " ".join(message.split())
    return f": {plain if len(plain) <= _QUOTE_CHARS else f'{plain[: _QUOTE_CHARS - 1]}…'}" if plain else ""


def seconds_since(time: str, now: datetime) -> float:
    """Return the seconds since an API timestamp; 0 if the text is not a timestamp."""
    try:
        return (now - datetime.fromisoformat(time).astimezone(UTC)).total_seconds()
    except ValueError:
        return 0.0


def _phase(pod: Wire) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def _full_name(wire: Wire) -> str:
    return f"{wire['metadata'].get('namespace')}/{wire['metadata']['name']}"
