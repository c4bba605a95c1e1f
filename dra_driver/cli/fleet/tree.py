"""Trees of the cluster: as text, or as JSON or YAML.

In: branches. Out: lines on a terminal, or a document. `slices` and `claims` use it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dra_driver.cli.inputs.access import access_options
from dra_driver.cli.inputs.exit_code import exit_code_option
from dra_driver.cli.inputs.mig_option import mig_option
from dra_driver.cli.output import console, print_trimmed, printable, write_document
from dra_driver.model.errors import ExitCode
from dra_driver.views.envelope import DocumentKind
from dra_driver.views.wording import folded

if TYPE_CHECKING:
    from dra_driver.model.wire import Wire
    from dra_driver.views.fleet.branch import Branch
    from dra_driver.views.worlds.reading import WantedObjects
    from dra_driver.views.worlds.world import World

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
        click.option("--fleet", "profiles", multiple=True, metavar="PROFILE[=N]", help="Simulated nodes."),
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
        from dra_driver.views.fleet.branch import tree_document

        if form in {"tree", "wide"}:
            self.show(console(), world, branches)
        else:
            write_document(tree_document(self.kind, branches, self.more(world, branches)), form)


def draw(given: dict[str, Any], view: TreeView, wanted: WantedObjects) -> int:
    """Draw the tree, with --watch again after every change."""
    from dra_driver.cli.inputs.worlds import print_unseen

    shown = None
    while True:
        world = world_of(given, wanted)
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
    from dra_driver.views.fleet.branch import has_flags

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
    from dra_driver.cli.inputs.access import access_of
    from dra_driver.views.labels import label_selector

    has_labels = label_selector(given["labels"])
    namespace = given["namespace"]
    if world.kubernetes and not given["everywhere"]:
        namespace = access_of(given).home
    return [
        one
        for one in world.of(kind)
        if has_labels(one) and namespace in {"", one["metadata"].get("namespace") or "default"}
    ]


def world_of(given: dict[str, Any], wanted: WantedObjects) -> World:
    """Read the world that the options select; rules are applied to files and profiles. Raises: InputError, ApiError."""
    from dra_driver.cli.inputs.worlds import apply_options, read_world
    from dra_driver.views.worlds.rules import headline

    world = read_world(given["files"], given, wanted)
    if given["files"] or given["profiles"]:
        rules = apply_options(world, given, given["profiles"])
        if given["profiles"]:
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

    line = Text(folded([branch.name, *branch.like]), style="bold" if branch.kind in {"node", "pool"} else "")
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
