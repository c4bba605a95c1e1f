"""Checks for a device plugin or another DRA driver that serves the same GPUs, as the API server shows them.

Pure. In: `ClusterEvidence`. Out: findings. Two drivers that serve one GPU would hand it out twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.doctor.checks.slice_checks import identities
from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.model.wire import Wire
from dra_driver.plugin.other_drivers.device_plugin import allocatable_gpus


def check_conflicts(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check every node on which this driver publishes devices or has an agent."""
    yield from _device_plugins(cluster)
    yield from _other_drivers(cluster)


def _device_plugins(cluster: ClusterEvidence) -> Iterator[Finding]:
    served = {_node(one) for one in _slices(cluster, is_ours=True) if one["spec"].get("devices")}
    waiting = {(one.get("spec") or {}).get("nodeName") for one in cluster.of("pods") if _is_agent(one)}
    for node in cluster.of("nodes"):
        name, offered = node["metadata"]["name"], allocatable_gpus(node)
        if not offered or name not in served | waiting:
            continue
        listed = ", ".join(f"{resource}: {count}" for resource, count in sorted(offered.items()))
        how = "beside slices of this driver" if name in served else "so that the agent there publishes none"
        yield Finding(
            "node-device-plugin", f"node {name}", f"a device plugin offers {listed}, {how}", "status.allocatable",
            "remove the device plugin from this node (docs/moving.md)",
        )  # fmt: skip


def _other_drivers(cluster: ClusterEvidence) -> Iterator[Finding]:
    ours = {(_node(one), gpu) for one in _slices(cluster, is_ours=True) for gpu in _identities(one)}
    seen = set()
    for one in _slices(cluster, is_ours=False):
        driver, node = one["spec"]["driver"], _node(one)
        if (driver, node) not in seen and any((node, gpu) in ours for gpu in _identities(one)):
            seen.add((driver, node))
            yield Finding(
                "slices-second-driver", f"node {node}", f"{driver} publishes GPUs that {cluster.driver} publishes too",
                "UUIDs and PCI addresses in the slices of both", "remove one of the two drivers from this node",
            )  # fmt: skip


def _slices(cluster: ClusterEvidence, *, is_ours: bool) -> list[Wire]:
    return [one for one in cluster.of("slices") if (one["spec"].get("driver") == cluster.driver) is is_ours]


def _identities(one: Wire) -> frozenset[str]:
    return frozenset().union(*(identities(device) for device in one["spec"].get("devices") or ()))


def _node(one: Wire) -> str:
    return str(one["spec"].get("nodeName") or "")


def _is_agent(pod: Wire) -> bool:
    labels = pod["metadata"].get("labels") or {}
    component = labels.get("app.kubernetes.io/component", "agent")
    return labels.get("app.kubernetes.io/name") == "dra-driver" and component == "agent"
