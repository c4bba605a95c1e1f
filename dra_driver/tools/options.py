"""Options that all `cel` commands have, and the inputs that they select: devices, selectors, a version, gates.

In: click's parameters. Out: `SelectorInputs`. The kind of an object decides what it is used for: ResourceSlices are
devices; objects that have selectors, or refer to objects that do, are selectors.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dra_driver.base.errors import HardwareError, InputError, NodeError, UsageError
from dra_driver.base.flags import DEFAULT_VENDOR, FLAGS, resolve
from dra_driver.base.names import check_driver_name, check_node_name, is_dns_label
from dra_driver.base.versions import FEATURE_GATES, VERSIONS, minor_of
from dra_driver.base.wire import Tenants
from dra_driver.hardware.choose import AUTO, choose, roots_of, vendors_here, vendors_listed
from dra_driver.selectors.check.declarations import SELECTOR_GATES
from dra_driver.selectors.engine import Environment
from dra_driver.tools.output import KubernetesVersion, TerminalProgress, printable
from dra_driver.tools.world.access import ClusterAccess, unseen_sentences
from dra_driver.tools.world.documents import STDIN, Classes, Document, read_documents, shown
from dra_driver.tools.world.fields import nearest
from dra_driver.tools.world.fleet import (
    Cluster,
    Fleet,
    fleet_of_hardware,
    fleet_of_slices,
    fleet_with_profiles,
)
from dra_driver.tools.world.profiles import FleetOffer, NodeSettings
from dra_driver.tools.world.queries import (
    SELECTOR_KINDS,
    SLICE,
    SelectorInputs,
    queries_of,
    refuse_bad_configs,
    with_expressions,
)
from dra_driver.tools.world.shapes import ShapeChecker, checked
from dra_driver.tools.world.workloads import EVERYTHING, WantedObjects, world_of_cluster, world_of_files
from dra_driver.tools.world.world import (
    DEFAULT_VERSION,
    PARTITIONS,
    AppliedRules,
    World,
    add_profiles,
    apply_rules,
    offer_under,
)

# The kubeconfig that a command uses if no option names one.


def default_kubeconfig() -> str | None:
    """Return the kubeconfig that kubectl would use, or None if there is none."""
    if named := os.environ.get("KUBECONFIG", "").strip(os.pathsep):
        return named  # may be a list of files
    usual = Path.home() / ".kube" / "config"
    return str(usual) if usual.is_file() else None


# The options that select a cluster, namespaces and labels, as in kubectl.

kubeconfig_option = click.option(
    "--kubeconfig", metavar="FILE", default=None, help="The cluster to read, unless files or profiles are named."
)
context_option = click.option("--context", metavar="NAME", default="", help="A context of the kubeconfig.")
everywhere_option = click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces.")
labels_option = click.option(
    "-l", "--selector", "labels", metavar="LABELS", default="", help="Labels, as in kubectl get -l."
)

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def fleet_option(text: str) -> _Decorator:
    """Return the option that adds simulated nodes, with its help."""
    return click.option("--fleet", "--profile", "profiles", multiple=True, metavar="PROFILE[=N]", help=text)


def namespace_option(text: str) -> _Decorator:
    """Return the option -n, with its help."""
    return click.option("-n", "--namespace", metavar="NAME", default="", help=text)


def access_options(namespace: str = "The namespace [default: the kubeconfig's; all, if files are read].") -> _Decorator:
    """Return a decorator that adds --kubeconfig, --context, -n with the help `namespace`, -A and -l."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        named = namespace_option(namespace)
        for decorate in (labels_option, everywhere_option, named, context_option, kubeconfig_option):
            function = decorate(function)
        return function

    return add


def access_of(given: Mapping[str, Any]) -> ClusterAccess:
    """Return the cluster that the options name. Raises: UsageError."""
    namespace = given.get("namespace") or ""
    if given.get("everywhere") and namespace:
        raise UsageError("namespace", "-n and -A can't be combined: use one of them")
    if namespace and not is_dns_label(namespace):
        raise UsageError("namespace", f"-n {namespace!r} is not the name of a namespace", hint="such as team-a")
    kubeconfig = given["kubeconfig"] or default_kubeconfig()
    return ClusterAccess(kubeconfig, given.get("context") or "", namespace, simulates="profiles" in given)


# Feature gates on the command line


def read_gates(rows: Iterable[str], kubernetes: str, *, known: Collection[str], dependent: str) -> dict[str, bool]:
    """Read values of --gate; `dependent` names, for errors, what depends on the `known` gates. Raises: UsageError."""
    gates: dict[str, bool] = {}
    for one in (part.strip() for row in rows for part in row.split(",")):
        name, _, value = one.partition("=")
        if value.lower() not in {"true", "false"}:
            raise UsageError("gate", f"--gate {one!r} is not NAME=true or NAME=false")
        if name not in known:
            raise UsageError("gate", f"--gate {name}: no {dependent} depends on this gate", hint=nearest(name, known))
        since = FEATURE_GATES[name].since
        if value.lower() == "true" and since > minor_of(kubernetes) > 0:
            raise UsageError("gate", f"--gate {name}: Kubernetes knows it since 1.{since}, not in {kubernetes}")
        gates[name] = value.lower() == "true"
    return gates


def given_gates(rows: Iterable[str], kubernetes: str) -> dict[str, bool]:
    """Read the values of --gate for a command that allocates. Raises: UsageError."""
    from dra_driver.tools.world.world import KNOWN_GATES

    return read_gates(rows, kubernetes, known=KNOWN_GATES, dependent="allocation")


# The flags and environment variables of the agent that commands about this node's hardware have as well.

_PLACES = {"driver_name", "cdi_root", "kubelet_registrar_directory_path", "kubelet_plugins_directory_path"}
_SYSFS = ("bus", "class", "devices")
SHARED = tuple(flag for flag in FLAGS if flag.is_hardware or flag.field in _PLACES)


def hardware_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared flags to a command."""
    for flag in reversed(SHARED):
        default = "this host's name" if flag.field == "node_name" else flag.default
        text = f"{flag.meaning}{f' [default: {default}]' if default else ''} [env {flag.variable}]"
        function = click.option(flag.name, flag.field, metavar=flag.metavar, default=None, help=text)(function)
    return function


def settings_of_node(given: Mapping[str, str | None]) -> NodeSettings:
    """Return the settings of one driver; if the node has GPUs of several vendors, those of the first.

    Raises: UsageError, InputError for a bad profile.
    """
    return settings_of_each(given)[0]


def settings_of_each(given: Mapping[str, str | None]) -> tuple[NodeSettings, ...]:
    """Resolve the flags, and return the settings of each driver that they name.

    "auto" stands for the vendors whose hardware is on this node, or for the default vendor if there is none; together
    with a driver's name it stands for that driver alone, as for the agent. Raises: UsageError, InputError for a bad
    profile.
    """
    values = resolve(given, os.environ, SHARED)
    choice = values["hardware"]
    is_named = bool(given.get("driver_name") or os.environ.get("DRIVER_NAME"))
    if choice == AUTO and not is_named:
        vendors = vendors_here(roots_of(values)) or (DEFAULT_VENDOR,)
    elif "," in choice and not choice.startswith("simulated:"):
        vendors = vendors_listed(choice)
        if given.get("driver_name"):
            text = f"--driver-name names one driver, and --hardware={choice} has several"
            raise UsageError("driver-name", text, hint="leave --driver-name out: each vendor has its own")
    else:
        return (_settings(values),)
    return tuple(_settings({**values, "hardware": vendor.name, "driver_name": vendor.driver}) for vendor in vendors)


def check_sysfs(given: Mapping[str, str | None]) -> None:
    """Refuse a folder that can't be a copy of /sys. Raises: UsageError("usage.sysfs-root").

    Otherwise a mistyped path would look like a machine without hardware.
    """
    root = given.get("sysfs_root")
    if root is None or any(Path(root, name).is_dir() for name in _SYSFS):
        return
    below = Path(root, "sys")
    hint = f"try {below}" if any((below / name).is_dir() for name in _SYSFS) else "name the folder that was /sys"
    raise UsageError("sysfs-root", f"--sysfs-root={root} has none of the folders {', '.join(_SYSFS)}", hint=hint)


def _settings(values: Mapping[str, str]) -> NodeSettings:
    node = check_node_name(values["node_name"] or socket.gethostname().lower())
    driver = check_driver_name(values["driver_name"])
    plugins = Path(values["device_plugins_directory_path"]) if values["device_plugin"] == "yield" else None
    registrar = Path(values["kubelet_registrar_directory_path"]).absolute()
    data = Path(values["kubelet_plugins_directory_path"]).absolute() / driver
    roots = roots_of(values)
    # An agent's changes to simulated hardware; empty if this user may not read them.
    state = data if os.access(data / "ledger.db", os.F_OK) else None
    return NodeSettings(
        node=node,
        driver=driver,
        hardware=choose(values["hardware"], roots, node_name=node, state_dir=state),
        device_plugins=plugins,
        registrar=registrar,
        data=data,
        cdi=Path(values["cdi_root"]),
        roots=roots,
        is_mig_dynamic=values["mig"] == "dynamic",
        has_all_profiles=values["mig_profiles"] == "all",
        sharing_config=Path(values["sharing_config"]) if values["sharing_config"] else None,
        mps_tenants=Tenants(values["mps_tenants"]),
    )


# The option `--mig` of commands that simulate nodes: how the nodes' agents would offer partitions.

mig_option = click.option(
    "--mig",
    type=click.Choice(["dynamic", "static"]),
    default="dynamic",
    show_default=True,
    help="Partitions of simulated nodes: made on demand, if DRAPartitionableDevices is on, or only the existing ones.",
)


def input_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for devices, selectors and the version."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


_OPTIONS = (
    click.argument("files", nargs=-1, metavar="[FILE|EXPR]..."),
    click.option("-f", "--file", "more_files", multiple=True, metavar="FILE", help="the same as FILE"),
    click.option(
        "-e",
        "--expression",
        "expressions",
        multiple=True,
        metavar="EXPR",
        help="a selector; if there are several, a device must match all",
    ),
    fleet_option("a simulated node: the name of a shipped profile or a file; N of them; repeatable"),
    click.option("--kubeconfig", metavar="FILE", default=None, help="devices and classes of this cluster"),
    click.option("--context", metavar="NAME", default="", help="the same, with a context of the kubeconfig"),
    click.option("--cluster", is_flag=True, help="the same, with kubectl's kubeconfig, or the ServiceAccount in a pod"),
    click.option(
        "--hardware", metavar="CHOICE", default=None, help="devices of this node: auto, a vendor, simulated:PROFILE"
    ),
    click.option(
        "--kubernetes",
        type=KubernetesVersion(),
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
    folds: bool = False,
    refuses_configs: bool = False,
) -> SelectorInputs:
    """Read all inputs. With `folds`, the devices of equal nodes may be left out (`Fleet.repeats`).

    If devices are needed and nothing that is given has any, they are those of the current cluster; without a
    kubeconfig, those of this node.

    With `refuses_configs`, an object with a config that its driver would refuse is an error.

    Raises: UsageError, InputError, ApiError, HardwareError, NodeError.
    """
    given, notes = with_expressions(given, given["kubernetes"] or DEFAULT_VERSION)
    documents = _documents(given)
    if refuses_configs:
        for document in documents:
            refuse_bad_configs(document, document.wire)
    cluster = _cluster(given, documents, needs_devices=needs_devices)
    try:
        kubernetes = given["kubernetes"] or _version(cluster)
        gates = read_gates(given["gates"], kubernetes, known=(*SELECTOR_GATES, PARTITIONS), dependent="selector")
        offer = offer_under(kubernetes, gates, given["mig"])
        fleet = Fleet(notes=notes) + _fleet(given, documents, cluster, offer, needs_devices=needs_devices)
        classes = _classes(documents, cluster)
        queries = queries_of(given["expressions"], documents, classes, cluster)
    finally:
        if cluster:
            cluster.close()
    if needs_selectors and not queries:
        hint = "use -e EXPR, or a file with a class, claim or pod"
        raise UsageError("no-selector", "there is no selector to evaluate", hint=hint)
    environment: Environment = given["environment"]
    gates = {name: on for name, on in gates.items() if name in SELECTOR_GATES}
    return SelectorInputs(fleet if folds else fleet.unfolded(), queries, kubernetes, gates, environment, classes)


def _classes(documents: list[Document], cluster: Cluster | None) -> Classes:
    own_classes = [document for document in documents if document.kind == "DeviceClass"]
    return Classes(own_classes, cluster.classes() if cluster else None)


def _documents(given: dict[str, Any]) -> list[Document]:
    paths = [*given["files"], *given["more_files"]]
    if paths.count(STDIN) > 1:
        raise UsageError("stdin", "- (standard input) can be given once")
    documents = read_documents(paths, TerminalProgress)
    checker = ShapeChecker()
    for document in documents:
        checked(document, checker)
    _refuse_other_input(documents)
    return documents


def _refuse_other_input(documents: list[Document]) -> None:
    known = {SLICE, *SELECTOR_KINDS}
    if documents and not any(document.kind in known for document in documents):
        kinds = ", ".join(sorted({document.kind for document in documents}))
        raise InputError(
            "no-known-kind",
            f"the files contain {kinds}, but nothing that has devices or selectors",
            hint=f"kinds that are read: {', '.join(sorted(known))}",
        )


def _cluster(given: dict[str, Any], documents: list[Document], *, needs_devices: bool) -> Cluster | None:
    """Connect to the cluster that the options name; if nothing else has devices, to kubectl's current one."""
    is_named = given["kubeconfig"] or given["context"] or given["cluster"]
    has_devices = given["profiles"] or given["hardware"] or any(document.kind == SLICE for document in documents)
    if is_named or (needs_devices and not has_devices and default_kubeconfig()):
        return Cluster(access_of(given), TerminalProgress)
    return None


def _fleet(
    given: dict[str, Any],
    documents: list[Document],
    cluster: Cluster | None,
    offer: FleetOffer,
    *,
    needs_devices: bool,
) -> Fleet:
    fleet = Fleet()
    slices = [document for document in documents if document.kind == SLICE]
    if slices:
        wires = [(f"{shown(slice_.origin)}: ResourceSlice {slice_.name}", slice_.wire) for slice_ in slices]
        fleet += fleet_of_slices(wires, ", ".join(dict.fromkeys(shown(slice_.origin) for slice_ in slices)))
    fleet = fleet_with_profiles(given["profiles"], fleet, offer)
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


# The world that the options of a command select, and the rules that apply to it.


def read_world(files: Sequence[str], given: Mapping[str, Any], wanted: WantedObjects = EVERYTHING) -> World:
    """Read the files; without files and profiles, the wanted objects of the cluster.

    Raises: InputError, ApiError.
    """
    if files or given["profiles"]:
        return world_of_files(files, TerminalProgress)
    return world_of_cluster(access_of(given), TerminalProgress, wanted)


def print_unseen(world: World) -> None:
    """Print to standard error which objects of a cluster could not be read, with one line for each missing role."""
    for sentence in unseen_sentences(world.unseen):
        print(printable(f"dra-driver: {sentence}"), file=sys.stderr)


def apply_options(world: World, given: Mapping[str, Any], profiles: Sequence[str]) -> AppliedRules:
    """Apply the options to a world: return the rules, and add simulated nodes. Raises: UsageError, InputError."""
    gates = given_gates(given["gates"], given["kubernetes"] or world.kubernetes or DEFAULT_VERSION)
    rules = apply_rules(world, given["kubernetes"], gates, given["mig"])
    add_profiles(world, profiles)
    return rules
