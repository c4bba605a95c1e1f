"""`dra-driver claims`: claims as a tree, with their devices and pods.

In: a live cluster or files. Out: a tree with flags. It only reads.
"""

from __future__ import annotations

from typing import Any

import click

from dra_driver.cli.fleet.tree import draw, tree_options
from dra_driver.views.envelope import DocumentKind


@click.command(name="claims")
@tree_options
def command(**given: Any) -> int:
    """Show claims, their devices, and the pods that use them.

    \b
    dra-driver claims                               the current cluster
    dra-driver claims -f claims.yaml --output json

    Flags (!) show allocations that no pod uses, reservations of pods that are gone or have ended, devices that are not
    published any more, and pods whose devices are not prepared yet.

    Exit status 1: there are flags.
    """  # noqa: D301
    from dra_driver.views.fleet.picture import picture_of_claims

    return draw(
        given,
        DocumentKind.CLAIM_TREE,
        "ResourceClaims",
        lambda world: picture_of_claims(
            world.of("ResourceClaim"),
            world.of("ResourceSlice"),
            world.of("Pod") if world.kubernetes or world.of("Pod") else None,
        ),
    )
