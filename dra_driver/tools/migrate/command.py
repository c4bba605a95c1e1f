"""`dra-driver migrate`: turn manifests written for the device plugin into manifests with claims.

In: manifests, and devices to evaluate their selectors on. Out: the manifests on standard output (or a diff, or changed
files), and on standard error what was changed, why, and what is lost; or all of this as one document.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dra_driver.base.errors import ExitCode, InputError, UsageError
from dra_driver.base.versions import VERSIONS
from dra_driver.tools.migrate import Migrated, SourceText
from dra_driver.tools.migrate.placement_check import Check
from dra_driver.tools.migrate.report import MigrationLoss
from dra_driver.tools.options import fleet_option, mig_option, output_option
from dra_driver.tools.output import (
    KubernetesVersion,
    TerminalProgress,
    console,
    print_text,
    printable,
    stdin_has_something,
    write_document,
)
from dra_driver.tools.world.access import unseen_sentences
from dra_driver.tools.world.documents import STDIN, Document, files_of, read_documents, read_text, shown
from dra_driver.tools.world.fields import plural
from dra_driver.tools.world.world import DEFAULT_VERSION

if TYPE_CHECKING:
    from dra_driver.tools.migrate import TemplateNames
    from dra_driver.tools.migrate.resources import Known
    from dra_driver.tools.world.fleet import Cluster, Fleet


# The files of `dra-driver migrate`: all are read before any is written, and each is replaced atomically.

_BOM = b"\xef\xbb\xbf"


def read_sources(paths: Sequence[str]) -> list[SourceText]:
    """Read the files to migrate. Raises: InputError, UsageError."""
    if list(paths).count(STDIN) > 1:
        raise UsageError("stdin", "- (standard input) can be given once")
    origins = list(dict.fromkeys(origin for path in paths for origin in files_of(path)))
    return [SourceText(shown(origin), read_text(origin)) for origin in origins]


def write_sources(done: Sequence[Migrated]) -> None:
    """Write the files that changed. Raises: InputError("input.unwritable")."""
    for one in done:
        if one.new != one.old:
            try:
                _replace(Path(os.path.realpath(one.origin)), one.new)
            except OSError as fault:
                raise InputError("unwritable", f"{one.origin} can't be written: {fault.strerror}") from fault


def _replace(path: Path, text: str) -> None:
    """Write a new file beside the old one, then rename it over the old."""
    known = path.stat()
    with path.open("rb") as old:
        mark = _BOM if old.read(len(_BOM)) == _BOM else b""
    number, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(mark + text.encode())
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(known.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.chown(beside, known.st_uid, known.st_gid)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


# The report of `dra-driver migrate`: changes with reasons, losses with remedies, checks.

_MAX_SUBJECTS = 3


def print_report(done: Sequence[Migrated], checks: Sequence[Check], *, in_place: bool) -> None:
    """Print the whole report."""
    out = console(stderr=True)
    for one in done:
        _print_file(out, one, in_place=in_place)
    losses = [loss for one in done for loss in one.losses]
    if losses:
        out.print()
        print_text(out, "Please note and check:", style="bold yellow")
        _print_losses(out, losses)
    if checks:
        out.print()
        print_text(out, "Checked:", style="bold")
        for check in checks:
            style = "green" if check.exit_code == ExitCode.OK else "bold red"
            print_text(out, f"{check.template}, request {check.request}: {check.words}", indent=2, style=style)
        if all(check.devices is None for check in checks):
            print_text(
                out,
                "use --fleet PROFILE, --slices FILE or --cluster to evaluate them on devices",
                indent=2,
                style="dim",
            )


def _print_file(out: Any, one: Migrated, *, in_place: bool) -> None:
    if not one.changes:
        print_text(out, f"{one.origin}: nothing to change", style="dim")
        return
    done = ", written" if in_place else ""
    print_text(out, f"{one.origin}: {plural(len(one.changes), 'change')}{done}", style="bold")
    for subject, rows in groupby(one.changes, key=lambda row: row.subject):
        print_text(out, subject, indent=2, style="bold")
        reasons: set[str] = set()
        for row in rows:
            print_text(out, row.what, indent=4)
            if row.why not in reasons:
                print_text(out, f"because {row.why}", indent=6, style="dim")
            reasons.add(row.why)


def _print_losses(out: Any, losses: Sequence[MigrationLoss]) -> None:
    """Print each loss once, with all the objects that it concerns."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for loss in losses:
        grouped.setdefault((loss.code, loss.what, loss.remedy), []).append(loss.subject)
    for (code, what, remedy), subjects in grouped.items():
        names = list(dict.fromkeys(subjects))
        more = len(names) - _MAX_SUBJECTS
        shown = ", ".join(names[:_MAX_SUBJECTS]) + (f" and {more} more" if more > 0 else "")
        print_text(out, f"{shown}: {what} [{code}]", indent=2)
        print_text(out, remedy, indent=4, style="dim")


@click.command(name="migrate")
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--in-place", "-i", is_flag=True, help="Change the files in place: all of them, or none.")
@click.option("--diff", is_flag=True, help="Show what would change, as a unified diff.")
@fleet_option("Try the selectors on simulated nodes.")
@click.option(
    "--slices", multiple=True, metavar="FILE", help="Try them on these ResourceSlices; DeviceClasses are read too."
)
@click.option(
    "--kubeconfig", metavar="FILE", default=None, help="Try them on this cluster, whose templates keep their names."
)
@click.option("--context", metavar="NAME", default="", help="The same, with a context of the kubeconfig.")
@click.option("--cluster", is_flag=True, help="The same, with kubectl's kubeconfig.")
@click.option(
    "-n", "--namespace", metavar="NAME", default="", help="Read only the cluster's templates of this namespace."
)
@click.option(
    "--shared",
    multiple=True,
    metavar="RESOURCE",
    help="A resource that is shared by time slicing or MPS without another name, such as nvidia.com/gpu.",
)
@click.option(
    "--kubernetes",
    type=KubernetesVersion(),
    default=None,
    help=f"The Kubernetes version whose rules apply to selectors.  [default: the cluster's, else {DEFAULT_VERSION}]",
)
@click.option("--gate", "gates", multiple=True, metavar="NAME=BOOL", help="A feature gate of simulated nodes.")
@mig_option
@output_option
def migrate_command(
    files: tuple[str, ...], output: str, *, in_place: bool, diff: bool, shared: tuple[str, ...], **given: Any
) -> int:
    """Turn manifests written for the device plugins of NVIDIA, AMD, Intel and Gaudi into manifests with claims.

    Limits on nvidia.com/gpu, nvidia.com/mig-*, amd.com/gpu, amd.com/cpx_nps4 (and other modes), gpu.intel.com/i915,
    gpu.intel.com/xe and habana.ai/gaudi become ResourceClaimTemplates; node selectors and required affinities on the
    labels of GPU feature discovery become selectors; quotas count devices of a class; the toleration that an admission
    plugin used to add is added. Comments, order and formatting are kept. What was changed, why, and what is lost is
    printed to standard error. FILE may be a folder, or - for standard input.

    \b
      dra-driver migrate examples/resourceclaims/24-extended-resource.yaml
      dra-driver migrate deployment.yaml > deployment-dra.yaml
      dra-driver migrate --diff manifests/ --fleet dgx-h100
      dra-driver migrate --in-place manifests/ --cluster
      helm template my-release ./chart | dra-driver migrate - | kubectl apply -f -

    \b
    Exit status:
      0  done, or nothing to do                     3  a file is wrong, or is a template to be rendered first
      1  a request finds too few devices            4  a device would abort scheduling
      2  the command line is wrong                  5  the cluster does not answer
    """  # noqa: D301
    from dra_driver.tools.migrate import migrate
    from dra_driver.tools.migrate.placement_check import refuse_faults

    paths = _paths(files, in_place=in_place, diff=diff)
    known = _shared(shared)
    cluster = _cluster(given)
    try:
        names = _names(cluster)
        sources = read_sources(paths)
        refuse_faults(sources)
        done = migrate(sources, known=known, templates=names)
        checks = _checks(done, given, cluster)
    finally:
        if cluster is not None:
            cluster.close()
    if in_place:
        write_sources(done)
    if output == "table":
        _write(done, diff=diff, in_place=in_place)
        print_report(done, checks, in_place=in_place)
    else:
        from dra_driver.tools.migrate.placement_check import migration_document

        write_document(migration_document(done, checks, diff=diff), output)
    codes = {check.exit_code for check in checks}
    return max(codes, default=ExitCode.OK)


def _paths(files: tuple[str, ...], *, in_place: bool, diff: bool) -> list[str]:
    """Check the given paths. Raises: UsageError."""
    if not files and stdin_has_something():
        files = (STDIN,)
    if not files:
        raise UsageError(
            "no-file", "no FILE was given", hint="name manifests, a folder of them, or - for standard input"
        )
    if in_place and STDIN in files:
        raise UsageError("stdin", "--in-place can't write to standard input")
    if in_place and diff:
        raise UsageError("diff", "--diff shows what --in-place would write: use one of them")
    return list(files)


def _shared(resources: tuple[str, ...]) -> Known:
    from dra_driver.tools.migrate.resources import kind_of

    known = {}
    for resource in resources:
        kind = kind_of(resource)
        if kind is None:
            hint = "such as nvidia.com/gpu or nvidia.com/mig-1g.10gb"
            raise UsageError("shared", f"--shared {resource!r} is not a resource of the device plugin", hint=hint)
        known[resource] = replace(kind, is_share=True)
    return known


def _cluster(given: dict[str, Any]) -> Cluster | None:
    if not (given["kubeconfig"] or given["context"] or given["cluster"]):
        return None
    from dra_driver.tools.options import access_of
    from dra_driver.tools.world.fleet import Cluster

    return Cluster(access_of(given), TerminalProgress)


def _names(cluster: Cluster | None) -> TemplateNames:
    from dra_driver.tools.migrate import TemplateNames

    names = TemplateNames()
    for wire in cluster.templates() if cluster else ():
        metadata = wire["metadata"]
        names.add(metadata["name"], metadata.get("namespace", ""), (wire.get("spec") or {}).get("spec") or {})
    for sentence in unseen_sentences(cluster.access.unseen) if cluster else ():
        print(printable(f"dra-driver: {sentence}"), file=sys.stderr)
    return names


def _checks(done: Sequence[Migrated], given: dict[str, Any], cluster: Cluster | None) -> list[Check]:
    """Evaluate the new requests on the given devices."""
    if not any(one.templates for one in done):
        return []
    from dra_driver.selectors.kubernetes import KubernetesEngine
    from dra_driver.tools.migrate.placement_check import checks_of
    from dra_driver.tools.world.documents import Classes

    documents = read_documents(given["slices"], TerminalProgress)
    own = [document for document in documents if document.kind == "DeviceClass"]
    own += [document for one in done for document in _classes_in(one)]
    classes = Classes(own, cluster.classes() if cluster else None)
    version = given["kubernetes"] or (cluster.kubernetes() if cluster else DEFAULT_VERSION)
    engine = KubernetesEngine(version if version in VERSIONS else DEFAULT_VERSION)
    return checks_of(done, _fleet(given, documents, cluster), classes, engine)


def _classes_in(one: Migrated) -> list[Document]:
    from dra_driver.tools.world.documents import parse_documents

    if "DeviceClass" not in one.old:
        return []
    return [document for document in parse_documents(one.old, one.origin) if document.kind == "DeviceClass"]


def _fleet(given: dict[str, Any], documents: list[Document], cluster: Cluster | None) -> Fleet | None:
    """Return the devices to evaluate requests on; None if no option names any. Raises: DriverError."""
    from dra_driver.tools.options import read_gates
    from dra_driver.tools.world.fleet import Fleet, fleet_of_profiles, fleet_of_slices
    from dra_driver.tools.world.world import PARTITIONS, offer_under

    fleet = Fleet()
    slices = [
        (f"{shown(one.origin)}: ResourceSlice {one.name}", one.wire) for one in documents if one.kind == "ResourceSlice"
    ]
    if given["slices"] and not slices:
        raise InputError("no-known-kind", f"there is no ResourceSlice in {', '.join(given['slices'])}")
    if slices:
        fleet += fleet_of_slices(slices, ", ".join(given["slices"]))
    version = given["kubernetes"] or (cluster.kubernetes() if cluster else "")
    version = version if version in VERSIONS else DEFAULT_VERSION
    gates = read_gates(given["gates"], version, known=(PARTITIONS,), dependent="simulated node")
    fleet = fleet_of_profiles(given["profiles"], fleet, offer_under(version, gates, given["mig"])).unfolded()
    if cluster is not None:
        fleet += cluster.fleet().unfolded()
    return fleet if fleet.sources else None


def _write(done: Sequence[Migrated], *, diff: bool, in_place: bool) -> None:
    """Write manifests, or a diff, to standard output."""
    if in_place:
        return
    shown = printable if sys.stdout.isatty() else str
    if diff:
        from dra_driver.tools.migrate.placement_check import diff_of

        for one in done:
            sys.stdout.write(shown(diff_of(one)))
        return
    for number, one in enumerate(done):
        if number and not one.new.startswith("---"):
            sys.stdout.write("---\n")
        sys.stdout.write(shown(one.new if one.new.endswith("\n") or not one.new else f"{one.new}\n"))
