"""Checks before a downgrade: what the older release could not undo, would not keep, or does not serve.

Pure. In: the release, `ClusterEvidence`, `NodeEvidence`. Out: findings.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.doctor.node_evidence import NodeEvidence
from dra_driver.doctor.releases import OlderRelease

_END = "end the pods that use it before you go back"


def check_held(release: OlderRelease, cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each claim on devices of a driver that the older release does not serve."""
    for claim in cluster.of("claims"):
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        drivers = {one.get("driver") for one in results if one.get("driver") == cluster.driver} - release.drivers
        meta = claim["metadata"]
        for driver in sorted(map(str, drivers)):
            yield _claim(
                f"{meta.get('namespace', 'default')}/{meta['name']}",
                f"holds devices of {driver}, which {release.name} does not serve: its pod would stay Terminating",
                "status.allocation",
            )


def check_withheld(release: OlderRelease, cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each node with devices that are tainted because of their health."""
    if release.keeps_health:
        return
    for slice_ in cluster.of("slices"):
        spec = slice_["spec"]
        if spec.get("driver") != cluster.driver:
            continue
        tainted = [one["name"] for one in spec.get("devices") or () if _is_ours(one, cluster.driver)]
        if tainted:
            yield _forgotten(release, f"node {spec.get('nodeName')}", tainted, "the taints in its slices")


def _is_ours(device: object, driver: str) -> bool:
    taints = device.get("taints") or () if isinstance(device, dict) else ()
    return any(str(one.get("key", "")).startswith(f"{driver}/") for one in taints)


def check_recorded(release: OlderRelease, node: NodeEvidence) -> Iterator[Finding]:
    """Yield a finding for each record of this node that the older release could not undo or would not keep."""
    for row in node.rows or ():
        unknown = sorted(set(row.kinds) - release.step_kinds)
        if unknown:
            yield _claim(
                row.name, f"was prepared in steps that {release.name} can't undo: {', '.join(unknown)}",
                "its row in the ledger",
            )  # fmt: skip
    health = node.health
    if health is not None and not release.keeps_health:
        faulty = sorted({f"GPU {one.subject.gpu}" for one in health.faults} | {one.device for one in health.cordons})
        if faulty:
            yield _forgotten(release, f"node {node.node}", faulty, "what the agent has recorded about health")


def _claim(name: str, message: str, how: str) -> Finding:
    return Finding("downgrade-claim", f"claim {name}", message, how, _END)


def _forgotten(release: OlderRelease, subject: str, devices: list[str], how: str) -> Finding:
    return Finding(
        "downgrade-health", subject,
        f"{release.name} knows nothing of health and would hand out {', '.join(devices[:8])} again", how,
        "cordon the node (kubectl cordon), or have the devices repaired first",
    )  # fmt: skip
