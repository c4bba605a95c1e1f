"""Examination: every check that the evidence at hand allows, as one report.

Pure. In: `ClusterEvidence` and `NodeEvidence`, either of which may be missing. Out: `Report`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dra_driver.doctor import (
    agent_checks,
    claim_checks,
    class_checks,
    kubernetes_checks,
    node_checks,
    slice_checks,
)
from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding, Report, Unseen, in_order
from dra_driver.doctor.node_evidence import NodeEvidence

CLUSTER_AREAS = ("Kubernetes", "gates", "container runtimes", "agents", "slices", "classes", "claims", "access")
NODE_AREAS = ("kernel driver", "hardware", "container runtime", "registration", "ledger and CDI files")


def examine(
    cluster: ClusterEvidence | None, node: NodeEvidence | None, now: datetime, unseen: tuple[Unseen, ...] = ()
) -> Report:
    """Run the checks. `unseen` is what could not even be begun."""
    findings: list[Finding] = []
    if cluster is not None:
        findings += _of_cluster(cluster, now)
    if node is not None:
        findings += _of_node(node)
    if cluster is not None and node is not None:
        findings += slice_checks.check_against_hardware(cluster, node)
        findings += claim_checks.check_ledger(cluster, node)
    return Report(
        in_order(findings),
        (*unseen, *(cluster.unseen if cluster else ()), *(node.unseen if node else ())),
        (*(CLUSTER_AREAS if cluster else ()), *(NODE_AREAS if node else ())),
    )


def _of_cluster(cluster: ClusterEvidence, now: datetime) -> Iterator[Finding]:
    yield from kubernetes_checks.check_versions(cluster)
    yield from kubernetes_checks.check_gates(cluster)
    yield from kubernetes_checks.check_reported_runtimes(cluster)
    yield from kubernetes_checks.check_admin_access(cluster)
    yield from kubernetes_checks.check_policy(cluster)
    yield from agent_checks.check_agents(cluster)
    yield from slice_checks.check_presence(cluster)
    yield from slice_checks.check_pools(cluster)
    yield from class_checks.check_classes(cluster)
    yield from claim_checks.check_reservations(cluster)
    yield from claim_checks.check_starting_pods(cluster, now)
    yield from claim_checks.check_devices(cluster)


def _of_node(node: NodeEvidence) -> Iterator[Finding]:
    yield from node_checks.check_kernel_driver(node)
    yield from node_checks.check_hardware(node)
    yield from node_checks.check_runtime(node)
    yield from node_checks.check_registration(node)
    yield from node_checks.check_prepared(node)
