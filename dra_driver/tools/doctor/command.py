"""`dra-driver doctor`: what is wrong on this node or in the cluster, the evidence for it, and how to fix it.

In: the cluster's API server, this node's files and hardware. Out: a report of every check that the available evidence
allows, and a support bundle if requested. It only reads; to find out feature gates, it sends dry-run requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from dra_driver.base.errors import DriverError, ExitCode, InputError
from dra_driver.kube.answers import FORBIDDEN
from dra_driver.tools.doctor import cluster_checks, node_checks, node_evidence, slice_checks, version_checks
from dra_driver.tools.doctor.bundle import write_bundle
from dra_driver.tools.doctor.evidence import ClusterEvidence, read_cluster
from dra_driver.tools.doctor.finding import DoctorReport, Finding, Unexamined, merge_reports, worst_first
from dra_driver.tools.doctor.node_evidence import EvidenceFolders, NodeEvidence, read_node
from dra_driver.tools.doctor.version_checks import OlderRelease, older_release
from dra_driver.tools.options import access_of, context_option, hardware_options, settings_of_each
from dra_driver.tools.output import console, print_text, write_document
from dra_driver.tools.world.access import OWN_VIEW, VIEWER, DocumentKind, OutputDocument
from dra_driver.tools.world.profiles import NodeSettings

_OF_VIEW = ("claims", "templates", "pods", "events", "daemonsets")  # kinds that Kubernetes' own role lets people read
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@click.command(name="doctor")
@hardware_options
@click.option(
    "--kubeconfig",
    metavar="FILE",
    default=None,
    help="The cluster (default: kubectl's kubeconfig, else the pod's own account).",
)
@context_option
@click.option("-n", "--namespace", metavar="NAME", default="", help="Claims and pods of this namespace only.")
@click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, help="Claims and pods of all namespaces (the default)."
)
@click.option("--host-root", metavar="DIR", default="/", show_default=True, help="Where the host's / is mounted.")
@click.option(
    "--only", type=click.Choice(["node", "cluster"]), default=None, help="Check only the node or only the cluster."
)
@click.option(
    "--before-downgrade",
    "back_to",
    metavar="VERSION",
    default=None,
    help="Also report what this older release could not undo or would not keep.",
)
@click.option("--bundle", metavar="FILE", default=None, help="Also write a redacted support bundle (tar.gz).")
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def doctor_command(
    host_root: str, only: str | None, back_to: str | None, bundle: str | None, output: str, **given: Any
) -> int:
    """Report what is wrong, the evidence for it, and how to fix it.

    \b
    dra-driver doctor                             this node and the cluster, as far as they can be checked
    dra-driver doctor --only cluster              from a laptop, with your kubeconfig
    dra-driver doctor -n team-a                   your claims and pods, with rights in one namespace
    dra-driver doctor --before-downgrade 0.1.1    also what 0.1.1 could not undo, before you go back to it
    dra-driver doctor --bundle b.tar.gz           also write what a bug report needs, redacted

    Nothing is changed. What could not be checked is listed; run it as root on a node to check everything. There is no
    -l, because the objects that are checked have no labels in common.

    Exit status 1: there are errors or warnings; 3: --kubeconfig is not a kubeconfig; 5: nothing could be checked, or
    the cluster that --kubeconfig names could not be checked.
    """  # noqa: D301
    release = older_release(back_to) if back_to else None
    kubeconfig = given["kubeconfig"]
    evidence = [_read_evidence(selected, given, Path(host_root), only) for selected in settings_of_each(given)]
    now = datetime.now(UTC)
    report = merge_reports([examine(cluster, node, now, unseen, release) for cluster, node, unseen in evidence])
    cluster, node, _ = evidence[0]  # the bundle has the evidence of the first of several drivers
    if bundle:
        write_bundle(Path(bundle), report, cluster, node)
    if output != "table":
        write_document(OutputDocument(DocumentKind.DOCTOR_REPORT, report.document()), output)
    else:
        _show(report, bundle)
    if not report.is_clean:
        return ExitCode.NO_MATCH
    sees_cluster = cluster is not None and bool(cluster.objects or cluster.kept)
    sees_node = any(one[1] is not None for one in evidence)
    is_seen = sees_node or sees_cluster if kubeconfig is None or only == "node" else sees_cluster
    return ExitCode.OK if is_seen else ExitCode.ENVIRONMENT


def _read_evidence(
    selected: NodeSettings, given: Mapping[str, Any], host: Path, only: str | None
) -> tuple[ClusterEvidence | None, NodeEvidence | None, tuple[Unexamined, ...]]:
    unseen: list[Unexamined] = []
    node = _read_node_evidence(selected, host, unseen, is_asked=only == "node") if only != "cluster" else None
    cluster = _read_cluster_evidence(selected.driver, given, unseen) if only != "node" else None
    return cluster, node, tuple(unseen)


def _read_node_evidence(
    selected: NodeSettings, host: Path, unseen: list[Unexamined], *, is_asked: bool
) -> NodeEvidence | None:
    folders = EvidenceFolders(
        selected.cdi, selected.registrar, selected.data.parent, selected.device_plugins or Path(), host
    )
    if not (is_asked or folders.is_kubelet_here or selected.hardware.is_present()):
        unseen.append(Unexamined("node", "this machine has no kubelet and no GPU; --only node checks it anyway"))
        return None
    return read_node(selected.node, selected.driver, selected.hardware, selected.roots, folders)


def _read_cluster_evidence(driver: str, given: Mapping[str, Any], unseen: list[Unexamined]) -> ClusterEvidence | None:
    access = access_of(given)
    try:
        api = access.connect()
        try:
            return read_cluster(api, driver, access.namespace, home=access.home)
        finally:
            api.close()
    except DriverError as error:
        if (given["kubeconfig"] or given["context"]) and isinstance(error, InputError):
            raise
        unseen.append(Unexamined("cluster", f"{error} [{error.code}]"))
        return None


def _show(report: DoctorReport, bundle: str | None) -> None:
    out = console()
    for finding in report.findings:
        _show_finding(out, finding)
    if report.unseen:
        print_text(out, "could not be checked:", style="bold")
        for what, why in _combined(report.unseen):
            print_text(out, f"{what}: {why}", indent=2)
    counts = {"error": 0, "warning": 0, "note": 0}
    for finding in report.findings:
        counts[str(finding.severity)] += 1
    listed = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items())
    print_text(out, f"looked at {', '.join(report.looked_at) or 'nothing'}: {listed}")
    if bundle:
        print_text(out, f"support bundle: {bundle} (look through it before you share it)")


def _combined(unseen: Sequence[Unexamined]) -> list[tuple[str, str]]:
    """Return what could not be checked, and why; everything that the account may not read is combined."""
    refused = [one.what for one in unseen if FORBIDDEN in one.why]
    roles: dict[str, list[str]] = {
        VIEWER: [kind for kind in ("slices", "classes", "nodes") if kind in refused],
        OWN_VIEW: [kind for kind in _OF_VIEW if any(kind in what.split() for what in refused)],
    }
    words = ", ".join(f"ClusterRole {role} for {', '.join(kinds)}" for role, kinds in roles.items() if kinds)
    why = f"this account may not read them{f' (bind {words})' if words else ''}"
    others = [(one.what, one.why) for one in unseen if FORBIDDEN not in one.why]
    return [(", ".join(refused), why), *others] if refused else others


def _show_finding(out: object, finding: Finding) -> None:
    severity = str(finding.severity)
    print_text(out, f"{severity:<8}{finding.id}", style=_STYLES[severity])
    print_text(out, f"{finding.subject}: {finding.message}", indent=8)
    print_text(out, f"evidence  {finding.how}", indent=8)
    print_text(out, f"remedy    {finding.remedy}", indent=8)
    print_text(out, f"page      docs/{finding.kind.page}", indent=8)


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
    explained = {finding.subject for finding in findings if finding.id == "pod-reference-missing"}
    return [finding for finding in findings if finding.id != "claim-waits" or finding.subject not in explained]


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
    yield from node_checks.check_agents(cluster, now)
    yield from node_checks.check_metric_sources(cluster)
    yield from slice_checks.check_presence(cluster)
    yield from slice_checks.check_pools(cluster)
    yield from node_checks.check_taints(cluster)
    yield from version_checks.check_conflicts(cluster)
    yield from version_checks.check_channels(cluster)
    yield from slice_checks.check_classes(cluster)
    yield from cluster_checks.check_tenants(cluster)
    yield from node_evidence.check_reservations(cluster, now)
    yield from node_evidence.check_starting_pods(cluster, now)
    yield from node_evidence.check_devices(cluster)
    yield from slice_checks.check_claim_selectors(cluster)
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
    yield from node_checks.check_recorded(node)
    yield from version_checks.check_device_users(node)
