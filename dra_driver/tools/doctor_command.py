"""`dra-driver doctor`: what is wrong on this node or in the cluster, the evidence for it, and how to fix it.

In: the cluster's API server, this node's files and hardware. Out: a report, and a support bundle if requested. It only
reads; to find out feature gates, it sends dry-run requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dra_driver.base.errors import DriverError, ExitCode, InputError
from dra_driver.kube.answers import FORBIDDEN
from dra_driver.tools.options import access_of, context_option, hardware_options, settings_of_each
from dra_driver.tools.output import console, print_text, write_document
from dra_driver.tools.world.access import OWN_VIEW, VIEWER, DocumentKind, OutputDocument

if TYPE_CHECKING:
    from dra_driver.tools.doctor.evidence import ClusterEvidence
    from dra_driver.tools.doctor.finding import DoctorReport, Finding, Unexamined
    from dra_driver.tools.doctor.node_evidence import NodeEvidence
    from dra_driver.tools.world.profiles import NodeSettings

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
    from dra_driver.tools.doctor.bundle import write_bundle
    from dra_driver.tools.doctor.examination import examine
    from dra_driver.tools.doctor.finding import merge_reports
    from dra_driver.tools.doctor.version_checks import older_release

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
    from dra_driver.tools.doctor.finding import Unexamined
    from dra_driver.tools.doctor.node_evidence import EvidenceFolders, read_node

    folders = EvidenceFolders(
        selected.cdi, selected.registrar, selected.data.parent, selected.device_plugins or Path(), host
    )
    if not (is_asked or folders.is_kubelet_here or selected.hardware.is_present()):
        unseen.append(Unexamined("node", "this machine has no kubelet and no GPU; --only node checks it anyway"))
        return None
    return read_node(selected.node, selected.driver, selected.hardware, selected.roots, folders)


def _read_cluster_evidence(driver: str, given: Mapping[str, Any], unseen: list[Unexamined]) -> ClusterEvidence | None:
    from dra_driver.tools.doctor.evidence import read_cluster
    from dra_driver.tools.doctor.finding import Unexamined

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
    roles = f"bind ClusterRole {VIEWER} for slices, classes and nodes, {OWN_VIEW} for claims and pods"
    why = f"this account may not read them ({roles})"
    others = [(one.what, one.why) for one in unseen if FORBIDDEN not in one.why]
    return [(", ".join(refused), why), *others] if refused else others


def _show_finding(out: object, finding: Finding) -> None:
    severity = str(finding.severity)
    print_text(out, f"{severity:<8}{finding.id}", style=_STYLES[severity])
    print_text(out, f"{finding.subject}: {finding.message}", indent=8)
    print_text(out, f"evidence  {finding.how}", indent=8)
    print_text(out, f"remedy    {finding.remedy}", indent=8)
    print_text(out, f"page      docs/{finding.kind.page}", indent=8)
