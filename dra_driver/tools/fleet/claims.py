"""Trees of the cluster: as text, or as JSON or YAML.

In: branches. Out: lines on a terminal, or a document. `slices` and `claims` use it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dra_driver.base.errors import ExitCode
from dra_driver.base.flags import FLAGS
from dra_driver.tools.commands import exit_code_option
from dra_driver.tools.options import access_options, fleet_option, mig_option
from dra_driver.tools.output import console, print_text, print_trimmed, printable, write_document
from dra_driver.tools.world.access import DocumentKind
from dra_driver.tools.world.fields import folded, number, plural

if TYPE_CHECKING:
    from dra_driver.base.wire import Wire
    from dra_driver.tools.fleet.template import Branch
    from dra_driver.tools.world.workloads import WantedObjects
    from dra_driver.tools.world.world import World


WATCH_SECONDS = 2.0
_BAR = 10


def tree_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select what is read, and the form of the output."""
    for decorate in (
        exit_code_option,
        click.option(
            "--output",
            "-o",
            type=click.Choice(["tree", "wide", "json", "yaml"]),
            default="tree",
            help="wide: every device, none summed up.",
        ),
        click.option(
            "--watch", "-w", is_flag=True, help="Draw the tree again whenever something changes, until interrupted."
        ),
        access_options(),
        mig_option,
        click.option("--gate", "gates", multiple=True, metavar="NAME=BOOL", help="A feature gate of simulated nodes."),
        click.option(
            "--kubernetes", metavar="VERSION", default=None, help="The API server version of the simulated nodes."
        ),
        fleet_option("Simulated nodes."),
        click.option(
            "-f", "--file", "files", multiple=True, metavar="FILE", help="Files with slices, claims and pods."
        ),
    ):
        function = decorate(function)
    return function


@dataclass(frozen=True, slots=True)
class TreeView:
    """A kind of tree in all the forms in which it is shown.

    `picture` makes its branches, and `show` prints them for people; a document for programs also has the content that
    `more` returns.
    """

    kind: DocumentKind
    picture: Callable[[World], list[Branch]]
    show: Callable[[Any, World, list[Branch]], None]
    more: Callable[[World, list[Branch]], Wire]

    def write(self, world: World, branches: list[Branch], form: str) -> None:
        """Write the tree in the form that --output names."""
        from dra_driver.tools.fleet.template import tree_document

        if form in {"tree", "wide"}:
            self.show(console(), world, branches)
        else:
            write_document(tree_document(self.kind, branches, self.more(world, branches)), form)


def draw(given: dict[str, Any], view: TreeView, wanted: WantedObjects) -> int:
    """Draw the tree, with --watch again after every change."""
    from dra_driver.tools.options import print_unseen

    shown = None
    while True:
        world = world_of(given, wanted, says_rules=shown is None)
        branches = view.picture(world)
        if branches != shown:
            if shown is not None:
                console().clear()
            view.write(world, branches, given["output"])
            print_unseen(world)
            shown = branches
        if not given["watch"]:
            return _exit_code(world, branches, fails=given["fails"])
        time.sleep(WATCH_SECONDS)


def _exit_code(world: World, branches: list[Branch], *, fails: bool) -> int:
    from dra_driver.tools.fleet.template import has_flags

    if world.unseen:
        return ExitCode.ENVIRONMENT
    return ExitCode.NO_MATCH if fails and has_flags(branches) else ExitCode.OK


def seen_pods(world: World) -> list[Wire] | None:
    """Return the pods; None if they are not known: they may not be read, or the files contain none."""
    if any(one.kind == "Pod" for one in world.unseen):
        return None
    return world.of("Pod") if world.kubernetes or world.of("Pod") else None


def selected(world: World, kind: str, given: Mapping[str, Any]) -> list[Wire]:
    """Return the objects of a kind that -n, -A and -l select."""
    from dra_driver.tools.options import access_of
    from dra_driver.tools.world.fields import label_selector

    has_labels = label_selector(given["labels"])
    namespace = given["namespace"]
    if world.kubernetes and not given["everywhere"]:
        namespace = access_of(given).home
    return [
        one
        for one in world.of(kind)
        if has_labels(one) and namespace in {"", one["metadata"].get("namespace") or "default"}
    ]


def world_of(given: dict[str, Any], wanted: WantedObjects, *, says_rules: bool = True) -> World:
    """Read the world that the options select; rules are applied to files and profiles.

    With `says_rules`, standard error says which rules hold for simulated nodes. Raises: InputError, ApiError.
    """
    from dra_driver.tools.options import apply_options, read_world
    from dra_driver.tools.world.world import headline

    world = read_world(given["files"], given, wanted)
    if given["files"] or given["profiles"]:
        rules = apply_options(world, given, given["profiles"])
        if given["profiles"] and says_rules:
            print(printable(f"dra-driver: {headline(rules, world, given['profiles'])}"), file=sys.stderr)
    return world


def show_tree(out: Any, title: str, branches: Sequence[Branch]) -> None:
    """Print branches as a tree."""
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(title, style="bold"))
    for branch in branches:
        _grow(tree, branch)
    print_trimmed(out, tree)


def _grow(parent: Any, branch: Branch) -> None:
    from rich.text import Text

    line = Text(folded([branch.name, *branch.like]), style="bold" if branch.kind in {"node", "pool", "group"} else "")
    if branch.fill is not None:
        full = round(max(0.0, min(branch.fill, 1.0)) * _BAR)
        line.append(f" [{'#' * full}{'.' * (_BAR - full)}] {branch.fill:.0%}", style="cyan")
    if branch.text:
        line.append(f" {branch.text}", style="dim")
    for flag in branch.flags:
        line.append(f" ! {flag}", style="bold red")
    below = parent.add(line)
    for child in branch.children:
        _grow(below, child)


# `dra-driver claims`: claims as a tree, with their devices and pods.

_CDI_ROOT = next(flag for flag in FLAGS if flag.field == "cdi_root")


@click.command(name="claims")
@tree_options
@click.option("--by", type=click.Choice(["namespace", "node", "state"]), help="Draw the claims in groups.")
@click.option(
    _CDI_ROOT.name,
    "cdi_root",
    metavar=_CDI_ROOT.metavar,
    default=_CDI_ROOT.default,
    envvar=_CDI_ROOT.variable,
    show_default=True,
    help="With -o wide: this node's folder of CDI files, which also has the files about devices.",
)
def claims_command(**given: Any) -> int:
    """Show claims, their devices, and the pods that use them.

    \b
    dra-driver claims                               those of the kubeconfig's namespace
    dra-driver claims -A                            those of all namespaces
    dra-driver claims -A --by node                  in groups by namespace, node or state
    dra-driver claims -n team-a -l app=train        of one namespace, by their labels
    dra-driver claims -f claims.yaml --output json
    dra-driver claims -A -o wide                    on a node: with the content of its files about devices

    Pods that wait for an extended resource of a class, and have no claim yet, follow the claims.

    Flags (!) show allocations that no pod uses, reservations of pods that are gone or have ended, devices that are not
    published any more, pods whose devices are not prepared yet, and containers that do not run.

    With -o wide, the file that containers read about a device is shown below every device that was prepared on this
    node: its path, the number of changes, and all attributes, among them the UUID of a partition that was made for the
    claim (docs/metadata.md).

    Exit status 1: there are flags, and --exit-code was given; 5: something in the cluster may not be read.
    """  # noqa: D301
    from dra_driver.tools.fleet.branches import claim_tree
    from dra_driver.tools.world.access import unseen_document
    from dra_driver.tools.world.fleet import DeviceFiles
    from dra_driver.tools.world.workloads import WantedObjects

    kinds = ("ResourceClaim", "ResourceSlice", "Pod", "DeviceClass")
    is_wide = given["output"] == "wide"

    view = TreeView(
        DocumentKind.CLAIM_TREE,
        lambda world: claim_tree(
            selected(world, "ResourceClaim", given),
            None if world.is_unseen("ResourceSlice") else world.of("ResourceSlice"),
            seen_pods(world),
            files=DeviceFiles(Path(given["cdi_root"])) if is_wide else None,
        ),
        show=partial(_show, given=given, is_wide=is_wide),
        more=lambda world, _branches: {"unseen": unseen_document(world.unseen)},
    )
    return draw(given, view, WantedObjects(kinds, at_home=not given["everywhere"]))


def _grouped(branches: Sequence[Branch], by: str, slices: Sequence[Wire]) -> list[Branch]:
    """Return the claims below one branch for each namespace, node or state."""
    from dra_driver.tools.fleet.template import Branch

    places = {(one["spec"]["driver"], one["spec"]["pool"]["name"]): one["spec"].get("nodeName") for one in slices}
    groups: dict[str, list[Branch]] = {}
    for branch in branches:
        groups.setdefault(_group_of(branch, by, places), []).append(branch)
    return [Branch("group", name, plural(len(groups[name]), "claim"), children=groups[name]) for name in sorted(groups)]


def _group_of(branch: Branch, by: str, places: Mapping[tuple[str, str], str | None]) -> str:
    from dra_driver.tools.fleet.template import has_flags

    if by == "namespace":
        return branch.name.partition("/")[0]
    if by == "state":
        return "waiting" if not branch.facts["allocated"] else "with flags" if has_flags([branch]) else "in use"
    pools = [(one.facts["driver"], one.facts["pool"]) for one in branch.children if one.kind == "device"]
    return ", ".join(sorted({places.get(pool) or pool[1] for pool in pools})) or "no node"


def _resource_pods(world: World, given: Mapping[str, Any]) -> list[Branch]:
    """Return the pods that wait for extended resources of classes, for which the scheduler has made no claim yet."""
    from dra_driver.simulator.workloads import classes_by_resource
    from dra_driver.tools.fleet.template import Branch
    from dra_driver.tools.world.pod_status import claim_names, has_ended, scheduler_message
    from dra_driver.tools.world.workloads import extended_resources

    served = classes_by_resource(world.of("DeviceClass"), with_implicit=world.serves_implicit_names)
    found = []
    for pod in selected(world, "Pod", given):
        names = [name for name in extended_resources(pod) if name in served]
        if names and not (pod.get("spec") or {}).get("nodeName") and not has_ended(pod) and not claim_names(pod):
            message, metadata = scheduler_message(pod), pod["metadata"]
            place = f"pod {metadata.get('namespace') or 'default'}/{metadata['name']}"
            found.append(Branch("pod", place, ": ".join(filter(None, (f"waits for {', '.join(names)}", message)))))
    return found


def _show(out: Any, world: World, branches: list[Branch], *, given: Mapping[str, Any], is_wide: bool) -> None:
    """Print the claims, then how many there are, and how many of their devices have a file on this node."""
    if not branches and any(one.kind == "ResourceClaim" for one in world.unseen):
        print_text(out, "The claims are not known, because none may be read.")
        return
    waiting = sum(not branch.facts["allocated"] for branch in branches)
    devices = sum(child.kind == "device" for branch in branches for child in branch.children)
    shown = _grouped(branches, given["by"], world.of("ResourceSlice")) if given["by"] else branches
    show_tree(out, "ResourceClaims", [*shown, *_resource_pods(world, given)])
    print_text(out, f"{plural(len(branches), 'claim')}: {plural(devices, 'device')} held, {number(waiting)} waiting")
    if is_wide:
        described = sum(
            one.kind == "file" for branch in branches for child in branch.children for one in child.children
        )
        none = "there are no files about them here: they are on the claims' nodes, if deviceMetadata is on there"
        print_text(out, f"{plural(described, 'device')} described by files of this node" if described else none)
