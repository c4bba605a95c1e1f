"""`dra-driver slices`: the fleet as a tree, from nodes down to pods.

In: a live cluster, files or profiles. Out: a tree with bars and flags. It only reads.
"""

from __future__ import annotations

from typing import Any

import click

from dra_driver.cli.fleet.tree import draw, tree_options
from dra_driver.views.envelope import DocumentKind


@click.command(name="slices")
@tree_options
def command(**given: Any) -> int:
    """Show nodes, pools, GPUs, partitions, and which claim and pod holds each.

    \b
    dra-driver slices                                   the current cluster
    dra-driver slices -f slices.yaml -f claims.yaml     the output of kubectl get -o yaml
    dra-driver slices --output html > fleet.html        one page, nothing to install

    Bars show how much of a partitioned or shared GPU is held. Flags (!) show incomplete pools, slices of older
    generations, taints, devices that are held but not published, reservations of pods that are gone.

    Exit status 1: there are flags.
    """  # noqa: D301
    from dra_driver.views.fleet.picture import picture_of_slices

    return draw(
        given,
        DocumentKind.SLICE_TREE,
        "ResourceSlices",
        lambda world: picture_of_slices(
            world.of("ResourceSlice"),
            world.of("ResourceClaim"),
            world.of("Pod") if world.kubernetes or world.of("Pod") else None,
        ),
    )
