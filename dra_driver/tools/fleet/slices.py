"""`dra-driver slices`: the fleet in figures, then as a tree, from nodes down to pods.

In: a live cluster, files or profiles. Out: a table, and a tree with bars and flags. It only reads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dra_driver.base.errors import ExitCode, InputError
from dra_driver.base.names import NVIDIA_DRIVER, check_driver_name
from dra_driver.base.wire import Wire
from dra_driver.tools.fleet.claims import TreeView, draw, seen_pods, show_tree, tree_options, world_of
from dra_driver.tools.fleet.template import holder_line, holders, holders_document
from dra_driver.tools.options import access_of, access_options
from dra_driver.tools.output import Column, print_text, printable, show_table, write_document, yaml_text
from dra_driver.tools.world.access import DocumentKind, UnseenObjects, unseen_sentences
from dra_driver.tools.world.fields import counted, folded, label_selector, nearest, plural
from dra_driver.tools.world.fleet import Cluster

if TYPE_CHECKING:
    from dra_driver.tools.fleet.summary import HolderRow, NodeRow
    from dra_driver.tools.fleet.template import Branch
    from dra_driver.tools.world.world import World


import base64
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.base.errors import ApiError
from dra_driver.kube import paths
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.api import KubeApi
from dra_driver.tools.options import kubeconfig_option
from dra_driver.tools.world.access import ClusterAccess

_MAX_IN_TREE = 8  # nodes; if there are more, the tree shows only those with flags


@click.command(name="slices")
@tree_options
@click.option(
    "--by",
    type=click.Choice(["node", "namespace", "class"]),
    default="node",
    show_default=True,
    help="What each row of the table stands for.",
)
@click.option("--node", "only", multiple=True, metavar="NAME", help="Show only these nodes.")
@click.option("--as-template", is_flag=True, help="Write the slices of a node of this kind, for an autoscaler.")
def slices_command(by: str, only: tuple[str, ...], *, as_template: bool, **given: Any) -> int:
    """Show how much of each node is free, and which claim and pod holds which device.

    \b
    dra-driver slices                                   the current cluster
    dra-driver slices --by namespace                    who holds how much
    dra-driver slices --node gpu-7 -o wide              every device of one node
    dra-driver slices -f slices.yaml -f claims.yaml     the output of kubectl get -o yaml
    dra-driver slices --as-template --node gpu-7        for an autoscaler: docs/autoscalers.md

    The table counts the GPUs, the GPUs of which nothing is held, the partitions of each profile that would fit if no
    other profile were used, the devices that claims hold, and the faulty GPUs. The tree below the table shows what is
    held, and counts what is free; if there are more than 8 nodes, it shows only those with flags. With -n, only nodes
    are shown on which the namespace holds something; with -l, only slices with these labels.

    Bars show how much of a partitioned or shared GPU is held. Flags (!) show incomplete pools, slices of older
    generations, taints, devices that are held but not published, and reservations of pods that are gone.

    Exit status 1: there are flags, and --exit-code was given; 5: something in the cluster may not be read.
    """  # noqa: D301
    from dra_driver.tools.world.workloads import WantedObjects

    if as_template:
        return _write_template(given, only)
    view = TreeView(
        DocumentKind.SLICE_TREE,
        lambda world: _branches(world, given, only),
        show=partial(_show, by=by, is_wide=given["output"] == "wide", has_names=bool(only)),
        more=_figures,
    )
    return draw(given, view, WantedObjects(("ResourceSlice", "ResourceClaim", "Pod")))


def _write_template(given: dict[str, Any], only: Sequence[str]) -> int:
    """Write the slices of one node as a template. Raises: InputError unless the options select a single node."""
    from dra_driver.tools.fleet.template import group_annotations, node_template
    from dra_driver.tools.world.workloads import WantedObjects

    slices = world_of(given, WantedObjects(("ResourceSlice",))).of("ResourceSlice")
    nodes = only or tuple(dict.fromkeys(one["spec"]["nodeName"] for one in slices if one["spec"].get("nodeName")))
    if len(nodes) != 1:
        found = f"{plural(len(nodes), 'node')} {'were named' if only else 'were found'}"
        raise InputError("missing", f"a template is made of one node, but {found}", hint="name one with --node")
    own = [slice_ for slice_ in slices if slice_["spec"].get("nodeName") == nodes[0]]
    if not own:
        raise InputError("missing", f"node {nodes[0]} has no ResourceSlice")
    template = node_template(own, nodes[0])
    if given["output"] == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": template}, indent=2))
        return ExitCode.OK
    click.echo(printable(f"# A node of the same kind as {nodes[0]}, without what differs between machines."))
    annotations = group_annotations(template)
    if annotations:
        click.echo(
            "# If a cluster-api node group is scaled to zero, its whole GPUs are known to the Cluster Autoscaler by:"
        )
    for name, value in annotations.items():
        click.echo(printable(f'#   {name}: "{value}"'))
    for one in template:
        click.echo(f"---\n{yaml_text(one)}", nl=False)
    return ExitCode.OK


def _branches(world: World, given: dict[str, Any], only: Sequence[str]) -> list[Branch]:
    """Return the selected nodes. Raises: InputError for a node that does not exist."""
    from dra_driver.tools.fleet.summary import slice_tree
    from dra_driver.tools.world.fields import label_selector

    has_labels = label_selector(given["labels"])
    slices = [one for one in world.of("ResourceSlice") if has_labels(one)]
    claims, is_unseen = world.of("ResourceClaim"), world.is_unseen("ResourceSlice")
    if only and not is_unseen:
        known = {slice_["spec"].get("nodeName") for slice_ in slices}
        if missing := [name for name in only if name not in known]:
            hint = nearest(missing[0], sorted(name for name in known if name)[:20])
            raise InputError("missing", f"node {missing[0]} has no ResourceSlice", hint=hint)
        slices = [slice_ for slice_ in slices if slice_["spec"].get("nodeName") in only]
    branches = slice_tree(None if is_unseen else slices, claims, seen_pods(world))
    if only:
        branches = [branch for branch in branches if {branch.name, *branch.like} & set(only)]
    if given["namespace"]:
        branches = [branch for branch in branches if _holds(branch, given["namespace"])]
    return branches


def _holds(branch: Branch, namespace: str) -> bool:
    if branch.kind == "claim":
        return bool(branch.facts["namespace"] == namespace)
    return any(_holds(child, namespace) for child in branch.children)


def _why_empty(world: World) -> str:
    if world.of("ResourceSlice"):
        return (
            "No node is left: -n shows only those on which the namespace holds something, -l slices with these labels."
        )
    if not world.kubernetes:
        return "There is no ResourceSlice in the files."
    return "There is no ResourceSlice: no DRA driver has published a device. dra-driver doctor says what is missing."


def _show(out: Any, world: World, branches: list[Branch], *, by: str, is_wide: bool, has_names: bool) -> None:
    from dra_driver.tools.fleet.summary import class_rows, compact, folded_tree, namespace_rows, node_rows, totals
    from dra_driver.tools.fleet.template import has_flags

    is_unseen = world.is_unseen("ResourceSlice")
    rows = [] if is_unseen else node_rows(branches)
    if is_unseen:
        print_text(out, f"The devices are not known{', only which of them claims hold' if branches else ''}.")
    if is_unseen and (by == "node" or not branches):
        show_tree(out, "Devices that claims hold", branches)
        return
    if by == "node" and not rows:
        print_text(out, _why_empty(world))
    elif by == "node":
        show_table(out, "", _NODE_COLUMNS, map(_node_cells, rows if is_wide else compact(rows)))
    else:
        held = namespace_rows if by == "namespace" else class_rows
        show_table(out, "", _holder_columns(by), map(_holder_cells, held(world.of("ResourceClaim"))))
    nodes = sum(row.count for row in rows)
    if by == "node" and branches:
        is_small = is_wide or has_names or nodes <= _MAX_IN_TREE
        shown = branches if is_small else [branch for branch in branches if has_flags([branch])]
        if shown:
            show_tree(out, "ResourceSlices", shown if is_wide else folded_tree(shown))
        if not is_small:
            print_text(out, "--node NAME shows one node, -o wide all of them", style="dim")
    if not is_unseen:
        print_text(out, _totals_line(nodes, totals(rows)))


def _totals_line(nodes: int, total: NodeRow) -> str:
    parts = f" (or {_parts(total)})" if total.partitions else ""
    gpus = f"{plural(nodes, 'node')}, {plural(total.gpus, 'GPU')}: {total.whole_free:,} free as a whole{parts}"
    others = f"; {plural(total.others, 'device')} of other kinds" if total.others else ""
    return f"{gpus}; {plural(total.held, 'device')} held, {plural(total.sick, 'GPU')} faulty{others}"


def _parts(row: NodeRow) -> str:
    return counted(row.partitions)


_NODE_COLUMNS = (
    Column("node"),
    Column("GPUs", is_number=True),
    Column("product"),
    Column("whole free", is_number=True),
    Column("partitions free"),
    Column("held", is_number=True),
    Column("faulty", is_number=True),
)


def _node_cells(row: NodeRow) -> tuple[str, ...]:
    parts = f"up to {row.most_partitions}" if row.is_compact else _parts(row).replace(", ", " ") or "-"
    name = folded([row.node, *row.like])
    product = row.products[0][0] if len(row.products) == 1 else counted(row.products) or "-"
    return name, str(row.gpus), product, str(row.whole_free), parts, str(row.held), str(row.sick)


def _holder_columns(by: str) -> tuple[Column, ...]:
    return (
        Column(by),
        Column("claims", is_number=True),
        Column("devices held", is_number=True),
        Column("claims waiting", is_number=True),
    )


def _holder_cells(row: HolderRow) -> tuple[str, ...]:
    return row.name, str(row.claims), str(row.devices), str(row.waiting)


def _row_document(row: NodeRow) -> Wire:
    return {
        "node": row.node,
        "like": list(row.like),
        "gpus": row.gpus,
        "products": dict(row.products),
        "otherDevices": row.others,
        "wholeFree": row.whole_free,
        "partitionsFree": dict(row.partitions),
        "held": row.held,
        "sick": row.sick,
    }


def _figures(world: World, branches: list[Branch]) -> Wire:
    """Return the figures of the tables as a part of the document."""
    from dra_driver.tools.fleet.summary import class_rows, namespace_rows, node_rows
    from dra_driver.tools.world.access import plain, unseen_document

    claims = world.of("ResourceClaim")
    known = [] if world.is_unseen("ResourceSlice") else branches
    rows = [_row_document(row) for row in node_rows(known)]
    return {
        "figures": {
            "nodes": rows,
            "namespaces": plain(namespace_rows(claims)),
            "classes": plain(class_rows(claims)),
        },
        "unseen": unseen_document(world.unseen),
    }


# `dra-driver in-use`: the claims that hold devices of this driver, with the pods that use them.


@click.command(name="in-use")
@click.option(
    "--driver-name",
    "driver_names",
    envvar="DRIVER_NAME",
    multiple=True,
    default=(NVIDIA_DRIVER,),
    show_default=True,
    help="the driver whose devices are listed; repeatable [env DRIVER_NAME]",
)
@access_options("Only claims of this namespace [default: of all].")
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def in_use_command(driver_names: tuple[str, ...], output: str, **given: Any) -> int:
    """List the claims that hold devices of this driver, in all namespaces unless -n names one.

    \b
    dra-driver in-use                    in the current cluster
    dra-driver in-use -n team-a -o json
    dra-driver in-use --driver-name gpu.amd.com --driver-name gpu.nvidia.com

    With several --driver-name, -o json and yaml write one document for each driver.

    Exit status 1: there are such claims; 5: the API server was not reached, or not all claims may be read.
    """  # noqa: D301
    names = [check_driver_name(name) for name in driver_names]
    has_labels = label_selector(given["labels"])
    cluster = Cluster(access_of(given))
    try:
        claims = [claim for claim in cluster.claims() if has_labels(claim)]
    finally:
        cluster.close()
    return report_claims_in_use(claims, cluster.access.unseen, names, output)


def report_claims_in_use(
    claims: Sequence[Wire], unseen: Sequence[UnseenObjects], driver_names: Sequence[str], output: str = "table"
) -> ExitCode:
    """Report which of the claims hold devices of each driver; return the status, as `in-use` says."""
    is_held = False
    for number, name in enumerate(driver_names):
        found = holders(claims, name)
        is_held |= bool(found)
        if output == "table":
            _show_claims_in_use(found, name, is_all=not unseen)
        else:
            if output == "yaml" and number:
                click.echo("---")
            write_document(holders_document(found, name, unseen), output)
    for sentence in unseen_sentences(unseen):
        print(printable(f"dra-driver: {sentence}"), file=sys.stderr)
    return ExitCode.NO_MATCH if is_held else ExitCode.ENVIRONMENT if unseen else ExitCode.OK


def _show_claims_in_use(found: Sequence[Wire], driver_name: str, *, is_all: bool) -> None:
    for one in found:
        click.echo(printable(holder_line(one)))
    if found:
        verb = "holds" if len(found) == 1 else "hold"
        click.echo(f"{plural(len(found), 'claim')} {verb} devices of {driver_name}: end their pods first.")
    else:
        click.echo(f"No claim{'' if is_all else ' that may be read'} holds a device of {driver_name}.")


# `dra-driver uninstall-check`: refuse `helm uninstall` while claims hold devices, and leave the release as it was.
#
# The chart's Job runs it before helm removes anything. By then helm has noted in the release's own record that it is
# being uninstalled, and a refusal does not undo that: helm would list the release no more, and refuse to upgrade it.
# Therefore the record is set back here.
# Source: Helm's storage driver for Secrets: JSON, compressed by gzip, in base64; the status is a label as well.


# `helm rollback` makes a new revision with the Job of an older one, so a Job serves this many revisions.
REVISIONS = 30
_UNINSTALLING, _DEPLOYED = "uninstalling", "deployed"
_REFUSED = "Uninstall refused: claims hold devices"
_UNREADABLE = (ValueError, KeyError, TypeError, OSError, EOFError, zlib.error)


@dataclass(frozen=True, slots=True)
class HelmRelease:
    """A release, and the revision whose chart has the Job."""

    namespace: str
    name: str
    revision: int

    def records(self) -> Iterator[str]:
        """Yield the names of the Secrets in which helm may have the release's newest record."""
        for revision in range(self.revision, self.revision + REVISIONS):
            yield f"sh.helm.release.v1.{self.name}.v{revision}"


@click.command(name="uninstall-check")
@click.option(
    "--driver-name", "driver_names", multiple=True, required=True, metavar="NAME", help="a driver; repeatable"
)
@click.option("--namespace", required=True, metavar="NAME", help="the release's namespace")
@click.option("--release", required=True, metavar="NAME", help="the release's name in helm")
@click.option("--revision", required=True, type=click.IntRange(1), help="the release's revision that has this Job")
@kubeconfig_option
def uninstall_check_command(
    driver_names: tuple[str, ...], namespace: str, release: str, revision: int, kubeconfig: str | None
) -> int:
    """Refuse to uninstall a release while claims hold devices of its drivers.

    Exit status 1: there are such claims; 5: the API server was not reached, or not all claims may be read.
    """
    names = [check_driver_name(name) for name in driver_names]
    access = ClusterAccess(kubeconfig)
    api, refused = access.connect(), HelmRelease(namespace, release, revision)
    status = ExitCode.ENVIRONMENT
    try:
        claims = access.read(api, "ResourceClaim", paths.CLAIMS)
        status = report_claims_in_use(claims, access.unseen, names)
        return status
    finally:
        if status != ExitCode.OK:
            sys.stdout.flush()
            click.echo(printable(_refusal(refused, is_reset=reset_record(api, refused))))
        api.close()


def _refusal(release: HelmRelease, *, is_reset: bool) -> str:
    """Return what a refused uninstall means for the release, and what to run next."""
    at = f"{release.name} -n {release.namespace}"
    again = f"When no claim holds a device any more, run it again: helm uninstall {at}\n(--no-hooks skips this check.)"
    if is_reset:
        return f"Nothing was uninstalled: release {release.name} is deployed as before.\n{again}"
    return (
        f"Nothing was uninstalled, but helm calls release {release.name} uninstalling and will not upgrade it.\n"
        f"{again}\nTo keep the release: helm history {at}; then, with its last revision,"
        f" helm rollback {release.name} REVISION -n {release.namespace}"
    )


def reset_record(api: KubeApi, release: HelmRelease) -> bool:
    """Set the release's record from uninstalling to deployed; return whether that was done."""
    for name in release.records():
        path = paths.secret_path(release.namespace, name)
        try:
            secret = api.request("GET", path)
            deployed = deployed_record(secret)
            if deployed is not None:
                api.request("PUT", path, body=deployed)
                return True
        except ApiError as error:
            if error.code != NOT_FOUND:
                return False  # helm may keep its records elsewhere (HELM_DRIVER)
    return False


def deployed_record(secret: Wire) -> Wire | None:
    """Return the Secret of a release that is being uninstalled as that of a deployed one; None for any other Secret."""
    try:
        record = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))))
        info = record["info"]
        if info["status"] != _UNINSTALLING:
            return None
    except _UNREADABLE:
        return None
    record["info"] = {**info, "status": _DEPLOYED, "deleted": "", "description": _REFUSED}
    packed = gzip.compress(json.dumps(record).encode(), mtime=0)
    labels = {**(secret["metadata"].get("labels") or {}), "status": _DEPLOYED}
    data = {**secret["data"], "release": base64.b64encode(base64.b64encode(packed)).decode()}
    return {**secret, "metadata": {**secret["metadata"], "labels": labels}, "data": data}
