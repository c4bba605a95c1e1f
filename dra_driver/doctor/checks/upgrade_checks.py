"""Checks of a node whose GPU driver is being replaced: which claims and processes still hold its devices.

Pure. In: `ClusterEvidence`, `NodeEvidence`. Out: findings.
Source: k8s-driver-manager v0.12, which pauses the operands of a node by their labels and those of DRA drivers last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.doctor.node_evidence import NodeEvidence
from dra_driver.model.wire import ClaimWire, Wire

_SHOWN = 8  # holders in one finding
_OPERANDS, _PAUSED = "/gpu.deploy.", "paused-for-"


def check_paused(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each node that is paused for another driver while claims hold devices there."""
    if not cluster.has("nodes", "claims"):
        return
    for node in cluster.of("nodes"):
        name, paused = node["metadata"]["name"], _paused(node)
        holders = [text for claim in cluster.of("claims") if (text := _holder(claim, name, cluster.driver))]
        if paused and holders:
            yield Finding(
                "driver-upgrade-held", f"node {name}",
                f"is {paused.partition('=')[2]}, and its devices are held by {_listed(holders)}",
                f"the label {paused} beside GET resourceclaims",
                "end these pods first and the agent last: without it their claims are not unprepared, and the pods "
                "stay Terminating; if the agent is gone already, set its label to true until they are gone",
            )  # fmt: skip


def _paused(node: Wire) -> str:
    """Return the label by which a node's users of GPUs are paused, as KEY=VALUE; "" if there is none."""
    labels = node["metadata"].get("labels") or {}
    paused = (f"{key}={value}" for key, value in sorted(labels.items()) if _OPERANDS in key and _PAUSED in value)
    return next(paused, "")


def _holder(claim: ClaimWire, node: str, driver: str) -> str:
    """Return the names of a claim and its pods if it holds devices of a node; otherwise an empty text."""
    status = claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    pools = {one["pool"].partition("/")[0] for one in results if one.get("driver") == driver}
    if node not in pools:
        return ""
    pods = [one["name"] for one in status.get("reservedFor") or () if one.get("resource") == "pods"]
    meta = claim["metadata"]
    users = f" ({'pod' if len(pods) == 1 else 'pods'} {', '.join(pods)})" if pods else ""
    return f"{meta.get('namespace', 'default')}/{meta['name']}{users}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def check_device_users(node: NodeEvidence) -> Iterator[Finding]:
    """Yield a finding if the loaded driver is to be replaced and processes keep it from being unloaded."""
    kernel = node.kernel
    is_skewed = bool(kernel.library_version) and kernel.module_version != kernel.library_version
    is_not_answering = node.inventory is not None and bool(node.inventory.waiting_for)
    if node.users and kernel.module_version and (is_skewed or is_not_answering):
        held = [row.name for row in node.rows or () if row.devices]
        claims = f"; claims that are still prepared: {_listed(held)}" if held else ""
        yield Finding(
            "driver-in-use", f"kernel module {kernel.module_version}",
            f"can't be unloaded: in use by {_listed([str(one) for one in node.users])}{claims}",
            "the device files that processes have open (/proc/PID/fd)",
            "end the pods with claims, then the agent (or send it SIGUSR1), then the other processes",
        )  # fmt: skip
