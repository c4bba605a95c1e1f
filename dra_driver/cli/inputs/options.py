"""Options that all `cel` commands have, and the inputs that they select: devices, selectors, a version, gates.

In: click's parameters. Out: `SelectorInputs`. The kind of an object decides what it is used for: ResourceSlices are
devices; objects that have selectors, or refer to objects that do, are selectors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from dra_driver.cli.inputs.access import access_of
from dra_driver.cli.inputs.gates import read_gates
from dra_driver.cli.inputs.mig_option import mig_option
from dra_driver.cli.inputs.progress import TerminalProgress
from dra_driver.cli.inputs.stdin import stdin_has_something
from dra_driver.model.errors import HardwareError, InputError, NodeError, UsageError
from dra_driver.model.kubernetes import VERSIONS
from dra_driver.selectors.checking.declarations import SELECTOR_GATES
from dra_driver.selectors.engine import Environment
from dra_driver.views.fleet.cluster import Cluster
from dra_driver.views.fleet.devices import Fleet, fleet_of_hardware, fleet_of_profiles
from dra_driver.views.fleet.profile_nodes import FleetOffer
from dra_driver.views.fleet.published_fleet import fleet_of_slices
from dra_driver.views.objects.admission import refuse_bad_configs
from dra_driver.views.objects.classes import Classes
from dra_driver.views.objects.documents import Document, read_documents
from dra_driver.views.objects.shape_checker import ShapeChecker
from dra_driver.views.objects.strictness import checked
from dra_driver.views.objects.texts import STDIN, shown
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.queries import SELECTOR_KINDS, SLICE, Query, queries_of
from dra_driver.views.worlds.rules import DEFAULT_VERSION, PARTITIONS, offer_under


def input_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for devices, selectors and the version."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


_OPTIONS = (
    click.argument("files", nargs=-1, metavar="[FILE]..."),
    click.option(
        "-e",
        "--expression",
        "expressions",
        multiple=True,
        metavar="EXPR",
        help="a selector; if there are several, a device must match all",
    ),
    click.option(
        "--fleet",
        "profiles",
        multiple=True,
        metavar="PROFILE[=N]",
        help="a simulated node: the name of a shipped profile or a file; N of them; repeatable",
    ),
    click.option("--kubeconfig", metavar="FILE", default=None, help="devices and classes of this cluster"),
    click.option("--context", metavar="NAME", default="", help="the same, with a context of the kubeconfig"),
    click.option("--cluster", is_flag=True, help="the same, with kubectl's kubeconfig, or the ServiceAccount in a pod"),
    click.option(
        "--hardware", metavar="CHOICE", default=None, help="devices of this node: auto, a vendor, simulated:PROFILE"
    ),
    click.option(
        "--kubernetes",
        type=click.Choice(VERSIONS),
        default=None,
        help=f"the Kubernetes version whose rules apply  [default: the cluster's, else {DEFAULT_VERSION}]",
    ),
    click.option(
        "--gate",
        "gates",
        multiple=True,
        metavar="NAME=BOOL",
        help="a feature gate; the others keep the version's defaults",
    ),
    mig_option,
    click.option(
        "--environment",
        type=click.Choice(["stored", "new"]),
        default="stored",
        show_default=True,
        help="stored: as the scheduler compiles; new: as the API server checks new objects",
    ),
)

output_option = click.option(
    "--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)


def read_inputs(
    given: dict[str, Any],
    *,
    needs_devices: bool = True,
    needs_selectors: bool = True,
    uses_stdin: bool = True,
    folds: bool = False,
    refuses_configs: bool = False,
) -> SelectorInputs:
    """Read all inputs. With `folds`, the devices of equal nodes may be left out (`Fleet.repeats`).

    With `refuses_configs`, an object with a config that its driver would refuse is an error.

    Raises: UsageError, InputError, ApiError, HardwareError, NodeError.
    """
    documents = _documents(given, uses_stdin=uses_stdin)
    if refuses_configs:
        for document in documents:
            refuse_bad_configs(document, document.wire)
    cluster = _cluster(given)
    try:
        kubernetes = given["kubernetes"] or _version(cluster)
        gates = read_gates(given["gates"], kubernetes, known=(*SELECTOR_GATES, PARTITIONS), dependent="selector")
        offer = offer_under(kubernetes, gates, given["mig"])
        fleet = _fleet(given, documents, cluster, offer, needs_devices=needs_devices)
        queries = _queries(given["expressions"], documents, cluster)
    finally:
        if cluster:
            cluster.close()
    if needs_selectors and not queries:
        hint = "use -e EXPR, or a file with a class, claim or pod"
        raise UsageError("no-selector", "there is no selector to evaluate", hint=hint)
    environment: Environment = given["environment"]
    gates = {name: on for name, on in gates.items() if name in SELECTOR_GATES}
    return SelectorInputs(fleet if folds else fleet.unfolded(), queries, kubernetes, gates, environment)


def _queries(expressions: Sequence[str], documents: list[Document], cluster: Cluster | None) -> list[Query]:
    """Return what the options and the files ask for, with the classes of the files and the cluster."""
    own_classes = [one for one in documents if one.kind == "DeviceClass"]
    classes = Classes(own_classes, cluster.classes() if cluster else None)
    return queries_of(expressions, documents, classes, cluster)


def _documents(given: dict[str, Any], *, uses_stdin: bool) -> list[Document]:
    """Read the files, and standard input if no other option supplies devices."""
    paths = list(given["files"])
    if paths.count(STDIN) > 1:
        raise UsageError("stdin", "- (standard input) can be given once")
    documents = read_documents(paths, TerminalProgress)
    names_devices = any(given[name] for name in ("profiles", "kubeconfig", "context", "cluster", "hardware"))
    has_devices = names_devices or STDIN in paths or any(one.kind == SLICE for one in documents)
    if uses_stdin and not has_devices and stdin_has_something():
        documents += read_documents([STDIN])
    checker = ShapeChecker()
    for document in documents:
        checked(document, checker)
    _refuse_other_input(documents)
    return documents


def _refuse_other_input(documents: list[Document]) -> None:
    known = {SLICE, *SELECTOR_KINDS}
    if documents and not any(one.kind in known for one in documents):
        kinds = ", ".join(sorted({one.kind for one in documents}))
        raise InputError(
            "no-known-kind",
            f"the files contain {kinds}, but nothing that has devices or selectors",
            hint=f"kinds that are read: {', '.join(sorted(known))}",
        )


def _cluster(given: dict[str, Any]) -> Cluster | None:
    if not (given["kubeconfig"] or given["context"] or given["cluster"]):
        return None
    return Cluster(access_of(given), TerminalProgress)


def _fleet(
    given: dict[str, Any],
    documents: list[Document],
    cluster: Cluster | None,
    offer: FleetOffer,
    *,
    needs_devices: bool,
) -> Fleet:
    fleet = Fleet()
    slices = [one for one in documents if one.kind == SLICE]
    if slices:
        wires = [(f"{shown(one.origin)}: ResourceSlice {one.name}", one.wire) for one in slices]
        fleet += fleet_of_slices(wires, ", ".join(dict.fromkeys(shown(one.origin) for one in slices)))
    fleet = fleet_of_profiles(given["profiles"], fleet, offer)
    if given["profiles"] and offer.is_on_demand:
        fleet += Fleet(notes=(f"simulated nodes: {offer.words}",))
    if given["hardware"]:
        fleet += _node_fleet(given["hardware"])
    if cluster:
        fleet += cluster.fleet()
    return fleet if fleet.sources or not needs_devices else _own_fleet()


def _own_fleet() -> Fleet:
    """Return the devices of this node. Raises: UsageError("usage.no-devices") where it has none."""
    try:
        return _node_fleet(os.environ.get("HARDWARE") or "auto")
    except (HardwareError, NodeError) as fault:
        raise UsageError(
            "no-devices",
            f"no devices were given, and this node has none: {fault.message}",
            hint="use ResourceSlices (a file, or - for standard input), --fleet PROFILE, --kubeconfig or --cluster",
        ) from fault


def _node_fleet(choice: str) -> Fleet:
    from dra_driver.cli.inputs.hardware import settings_of_each

    fleet = Fleet()
    for selected in settings_of_each({"hardware": choice}):
        source = f"this node ({choice}, {selected.driver})"
        fleet += fleet_of_hardware(selected.hardware, selected.node, selected.driver, source, selected.rules())
    if choice == "auto" and not fleet.devices:
        raise NodeError("no-gpu", "no GPU found")
    return fleet


def _version(cluster: Cluster | None) -> str:
    if cluster is None:
        return DEFAULT_VERSION
    served = cluster.kubernetes()
    return served if served in VERSIONS else DEFAULT_VERSION
