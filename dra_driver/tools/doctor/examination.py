"""Examination: every check that the available evidence allows, as one report.

Pure. In: `ClusterEvidence` and `NodeEvidence`, either of which may be missing. Out: `DoctorReport`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dra_driver.tools.doctor import cluster_checks, node_checks, node_evidence, slice_checks, version_checks
from dra_driver.tools.doctor import node_checks as agent_checks
from dra_driver.tools.doctor import node_checks as health_checks
from dra_driver.tools.doctor import slice_checks as class_checks
from dra_driver.tools.doctor.evidence import ClusterEvidence
from dra_driver.tools.doctor.finding import DoctorReport, Finding, Unexamined, worst_first
from dra_driver.tools.doctor.node_evidence import NodeEvidence
from dra_driver.tools.doctor.version_checks import OlderRelease

# The areas, each with the kinds of objects that must have been read to examine it.
CLUSTER_AREAS: dict[str, tuple[str, ...]] = {
    "container runtimes": ("nodes", "slices"),
    "agents": ("pods",),
    "slices": ("slices",),
    "classes": ("classes", "slices"),
    "claims": ("claims",),
    "access": ("policies", "bindings"),
}


def examine(
    cluster: ClusterEvidence | None,
    node: NodeEvidence | None,
    now: datetime,
    unseen: tuple[Unexamined, ...] = (),
    back_to: OlderRelease | None = None,
) -> DoctorReport:
    """Run the checks and return their report. `unseen` lists what could not be examined at all.

    With `back_to`, the report also contains what that release could not undo, would not keep, or does not serve.
    """
    findings: list[Finding] = [] if back_to is None else list(_before_downgrade(back_to, cluster, node))
    if cluster is not None:
        findings += _without_explained(list(_of_cluster(cluster, now)))
    if node is not None:
        findings += _of_node(node, cluster)
    if cluster is not None and node is not None:
        findings += slice_checks.check_against_hardware(cluster, node)
        findings += version_checks.check_daemon(cluster, node)
        findings += node_evidence.check_ledger(cluster, node)
    return DoctorReport(
        worst_first(findings),
        (*unseen, *(cluster.unseen if cluster else ()), *(node.unseen if node else ())),
        (*(_areas_of_cluster(cluster) if cluster else ()), *(_areas_of_node(node) if node else ())),
    )


def _before_downgrade(
    release: OlderRelease, cluster: ClusterEvidence | None, node: NodeEvidence | None
) -> Iterator[Finding]:
    if cluster is not None:
        yield from version_checks.check_held(release, cluster)
        yield from version_checks.check_withheld(release, cluster)
    if node is not None:
        yield from version_checks.check_recorded(release, node)


def _without_explained(findings: list[Finding]) -> list[Finding]:
    """Leave out each finding that a pod waits if another finding explains why it can't be scheduled."""
    explained = {one.subject for one in findings if one.id == "pod-reference-missing"}
    return [one for one in findings if one.id != "claim-waits" or one.subject not in explained]


def _areas_of_cluster(cluster: ClusterEvidence) -> Iterator[str]:
    """Yield the areas that were examined: those whose objects could be read."""
    yield "Kubernetes"
    if cluster.kept:
        yield "gates"
    yield from (area for area, kinds in CLUSTER_AREAS.items() if cluster.has(*kinds))


def _areas_of_node(node: NodeEvidence) -> Iterator[str]:
    closed = {one.what for one in node.unseen}
    yield "kernel driver"
    if node.facts is not None:
        yield "hardware"
    if "container runtime" not in closed:
        yield "container runtime"
    if node.sockets is not None:
        yield "registration"
    if (node.rows is not None or node.ledger_fault) and node.cdi_uids is not None:
        yield "ledger and CDI files"
    if node.health is not None:
        yield "health"


def _of_cluster(cluster: ClusterEvidence, now: datetime) -> Iterator[Finding]:
    yield from cluster_checks.check_versions(cluster)
    yield from cluster_checks.check_gates(cluster)
    yield from cluster_checks.check_reported_runtimes(cluster)
    yield from cluster_checks.check_admin_access(cluster)
    yield from cluster_checks.check_policy(cluster)
    yield from agent_checks.check_agents(cluster, now)
    yield from agent_checks.check_metric_sources(cluster)
    yield from slice_checks.check_presence(cluster)
    yield from slice_checks.check_pools(cluster)
    yield from health_checks.check_taints(cluster)
    yield from version_checks.check_conflicts(cluster)
    yield from version_checks.check_channels(cluster)
    yield from class_checks.check_classes(cluster)
    yield from cluster_checks.check_tenants(cluster)
    yield from node_evidence.check_reservations(cluster, now)
    yield from node_evidence.check_starting_pods(cluster, now)
    yield from node_evidence.check_devices(cluster)
    yield from class_checks.check_claim_selectors(cluster)
    yield from cluster_checks.check_references(cluster)
    yield from cluster_checks.check_resources(cluster)
    yield from cluster_checks.check_taints(cluster)
    yield from version_checks.check_paused(cluster)


def _of_node(node: NodeEvidence, cluster: ClusterEvidence | None) -> Iterator[Finding]:
    version = cluster_checks.containerd_version(cluster, node.node) if cluster else None
    yield from node_checks.check_kernel_driver(node)
    yield from node_checks.check_hardware(node)
    yield from node_checks.check_runtime(node, version)
    yield from node_checks.check_registration(node)
    yield from node_checks.check_prepared(node)
    yield from health_checks.check_recorded(node)
    yield from version_checks.check_device_users(node)
