"""Checks of Kubernetes itself: versions, the resource API, gates, container runtimes as nodes report them, access.

Pure. In: `ClusterEvidence`. Out: findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dra_driver.doctor.checks.node_checks import CDI_BY_DEFAULT
from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.doctor.gates import PROBES
from dra_driver.model.kubernetes import NEWEST_MINOR, OLDEST_MINOR
from dra_driver.model.wire import Wire

ADMIN_LABEL = "resource.kubernetes.io/admin-access"
OLD_ADMIN_LABEL = "resource.k8s.io/admin-access"
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_CONTAINERD_WITH_CDI = (1, 7)
_CRIO_WITH_CDI = (1, 23)


def check_versions(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Compare the versions of the API server and the kubelets with those that the driver supports."""
    minor = cluster.version.minor
    if 0 < minor < OLDEST_MINOR:
        yield Finding(
            "kubernetes-too-old", "API server", f"is {cluster.version.git or f'1.{minor}'}", "GET /version",
            f"upgrade to Kubernetes 1.{OLDEST_MINOR} or newer: resource.k8s.io/v1 is on by default from there on",
        )  # fmt: skip
    elif minor > NEWEST_MINOR:
        yield Finding(
            "kubernetes-unknown-version", "API server", f"is {cluster.version.git}", "GET /version",
            f"look for a newer release of this driver: it was tested with 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR}",
        )  # fmt: skip
    if not cluster.has("slices") and any(one.what == "slices" and "404" in one.why for one in cluster.unseen):
        yield Finding(
            "kubernetes-no-resource-api", "API server", "does not serve resource.k8s.io/v1", "GET resourceslices: 404",
            "switch the feature gate DynamicResourceAllocation and the API resource.k8s.io/v1 on",
        )  # fmt: skip
    for node in cluster.of("nodes"):
        found = _numbers(_info(node, "kubeletVersion"))
        if found and found < (1, OLDEST_MINOR):
            yield Finding(
                "kubernetes-too-old", f"node {_name(node)}", f"its kubelet is {_info(node, 'kubeletVersion')}",
                "status.nodeInfo.kubeletVersion", f"upgrade the kubelet to 1.{OLDEST_MINOR} or newer",
            )  # fmt: skip


def check_gates(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each gate whose field the API server drops."""
    for gate, is_kept in cluster.kept.items():
        if not is_kept:
            yield Finding(
                "kubernetes-gate-off", gate, f"missing without it: {PROBES[gate].without}",
                "the API server dropped the field from a dry run",
                f"switch the gate on in API server, scheduler, controller-manager and kubelets, or do without ({gate})",
            )  # fmt: skip


def check_reported_runtimes(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check the container runtimes that are reported by nodes with slices of this driver."""
    ours = {_spec(one).get("nodeName") for one in cluster.of("slices") if _spec(one).get("driver") == cluster.driver}
    for node in cluster.of("nodes"):
        runtime, _, version = _info(node, "containerRuntimeVersion").partition("://")
        numbers = _numbers(version)
        if _name(node) not in ours or numbers is None:
            continue
        subject, how = f"node {_name(node)}", "status.nodeInfo.containerRuntimeVersion"
        needed = {"containerd": _CONTAINERD_WITH_CDI, "cri-o": _CRIO_WITH_CDI}.get(runtime)
        if needed and numbers < needed:
            yield Finding(
                "runtime-no-cdi", subject, f"{runtime} {version} does not support CDI", how,
                f"upgrade to {runtime} {needed[0]}.{needed[1]} or newer",
            )  # fmt: skip
        elif runtime == "containerd" and numbers < CDI_BY_DEFAULT:
            yield Finding(
                "runtime-cdi-unknown", subject, f"containerd {version} uses CDI only if enable_cdi is set", how,
                "run `dra-driver doctor` on that node, or look for enable_cdi = true in /etc/containerd/config.toml",
            )  # fmt: skip


def containerd_version(cluster: ClusterEvidence, node: str) -> tuple[int, int] | None:
    """Return the containerd version that a node reports; None if its runtime is another one or unknown."""
    for one in cluster.of("nodes"):
        runtime, _, version = _info(one, "containerRuntimeVersion").partition("://")
        if _name(one) == node and runtime == "containerd":
            return _numbers(version)
    return None


def check_admin_access(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check the labels of namespaces, and the templates in them that ask for admin access."""
    labels = {_name(one): one["metadata"].get("labels") or {} for one in cluster.of("namespaces")}
    for name, found in labels.items():
        if OLD_ADMIN_LABEL in found and found.get(ADMIN_LABEL) != "true":
            yield Finding(
                "access-old-label", f"namespace {name}", f"has {OLD_ADMIN_LABEL}, which 1.34 renamed",
                "metadata.labels", f"kubectl label namespace {name} {ADMIN_LABEL}=true {OLD_ADMIN_LABEL}-",
            )  # fmt: skip
    for kind, wire in [*(("template", one) for one in cluster.of("templates"))]:
        namespace = wire["metadata"].get("namespace", "")
        if namespace in labels and labels[namespace].get(ADMIN_LABEL) != "true" and _asks_for_admin(wire):
            yield Finding(
                "access-admin-refused", f"{kind} {namespace}/{_name(wire)}", "asks for admin access",
                f"namespace {namespace} lacks the label {ADMIN_LABEL}: true",
                f"kubectl label namespace {namespace} {ADMIN_LABEL}=true, or take adminAccess out",
            )  # fmt: skip


def check_policy(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check that a policy restricts each agent to its own node, and that agents lack no right."""
    for account, lacking in cluster.rights.items():
        if lacking:
            yield Finding(
                "access-missing-right", account, f"may not {', '.join(lacking)}", "SubjectAccessReview",
                "apply the RBAC of the chart, or of deploy/manifests/rbac.yaml",
            )  # fmt: skip
    if not cluster.has("policies", "bindings") or not cluster.of("slices"):
        return
    policies = [_name(one) for one in cluster.of("policies") if _guards_slices(one)]
    if not policies:
        yield Finding(
            "access-no-policy", "cluster", "an agent could write the slices of another node",
            "no ValidatingAdmissionPolicy covers resourceslices",
            "apply the chart's policy, or deploy/manifests/admission-policy.yaml",
        )  # fmt: skip
        return
    bound = [one for one in cluster.of("bindings") if _spec(one).get("policyName") in policies]
    if not any("Deny" in (_spec(one).get("validationActions") or ()) for one in bound):
        yield Finding(
            "access-policy-off", f"policy {policies[0]}", "has no binding that denies",
            "spec.validationActions of its bindings", "bind it with validationActions: [Deny]",
        )  # fmt: skip


def _guards_slices(policy: Wire) -> bool:
    rules = (_spec(policy).get("matchConstraints") or {}).get("resourceRules") or ()
    return any("resourceslices" in (rule.get("resources") or ()) for rule in rules)


def _asks_for_admin(template: Wire) -> bool:
    requests = ((_spec(template).get("spec") or {}).get("devices") or {}).get("requests") or ()
    return any((request.get("exactly") or {}).get("adminAccess") for request in requests)


def _numbers(version: str) -> tuple[int, int] | None:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


def _info(node: Wire, field: str) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get(field) or "")


def _name(wire: Wire) -> str:
    return str(wire["metadata"]["name"])


def _spec(wire: Wire) -> Wire:
    spec: Wire = wire.get("spec") or {}
    return spec
