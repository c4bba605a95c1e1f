"""`dra-driver claims`: claims as a tree, with their devices and pods.

In: a live cluster or files. Out: a tree with flags. It only reads.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dra_driver.cli.fleet.tree import TreeView, draw, seen_pods, selected, show_tree, tree_options
from dra_driver.cli.output import print_text
from dra_driver.model.flags import FLAGS
from dra_driver.views.envelope import DocumentKind
from dra_driver.views.wording import number, plural

if TYPE_CHECKING:
    from dra_driver.views.fleet.branch import Branch
    from dra_driver.views.worlds.world import World


_CDI_ROOT = next(flag for flag in FLAGS if flag.field == "cdi_root")


@click.command(name="claims")
@tree_options
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
    dra-driver claims -n team-a -l app=train        of one namespace, by their labels
    dra-driver claims -f claims.yaml --output json
    dra-driver claims -A -o wide                    on a node: with the content of its files about devices

    Flags (!) show allocations that no pod uses, reservations of pods that are gone or have ended, devices that are not
    published any more, and pods whose devices are not prepared yet.

    With -o wide, the file that containers read about a device is shown below every device that was prepared on this
    node: its path, the number of changes, and all attributes, among them the UUID of a partition that was made for the
    claim (docs/metadata.md).

    Exit status 1: there are flags, and --exit-code was given; 5: something in the cluster may not be read.
    """  # noqa: D301
    from dra_driver.views.access import unseen_document
    from dra_driver.views.fleet.claim_branches import claim_tree
    from dra_driver.views.fleet.device_files import DeviceFiles
    from dra_driver.views.worlds.reading import WantedObjects

    kinds = ("ResourceClaim", "ResourceSlice", "Pod")
    is_wide = given["output"] == "wide"

    view = TreeView(
        DocumentKind.CLAIM_TREE,
        lambda world: claim_tree(
            selected(world, "ResourceClaim", given),
            None if world.is_unseen("ResourceSlice") else world.of("ResourceSlice"),
            seen_pods(world),
            files=DeviceFiles(Path(given["cdi_root"])) if is_wide else None,
        ),
        show=partial(_show, is_wide=is_wide),
        more=lambda world, _branches: {"unseen": unseen_document(world.unseen)},
    )
    return draw(given, view, WantedObjects(kinds, at_home=not given["everywhere"]))


def _show(out: Any, world: World, branches: list[Branch], *, is_wide: bool) -> None:
    """Print the claims, then how many there are, and how many of their devices have a file on this node."""
    if not branches and any(one.kind == "ResourceClaim" for one in world.unseen):
        print_text(out, "The claims are not known, because none may be read.")
        return
    waiting = sum(not branch.facts["allocated"] for branch in branches)
    devices = sum(child.kind == "device" for branch in branches for child in branch.children)
    show_tree(out, "ResourceClaims", branches)
    print_text(out, f"{plural(len(branches), 'claim')}: {plural(devices, 'device')} held, {number(waiting)} waiting")
    if is_wide:
        described = sum(
            one.kind == "file" for branch in branches for child in branch.children for one in child.children
        )
        none = "there are no files about them here: they are on the claims' nodes, if deviceMetadata is on there"
        print_text(out, f"{plural(described, 'device')} described by files of this node" if described else none)
