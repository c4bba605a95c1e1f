"""`dra-driver in-use`: the claims that hold devices of this driver, with the pods that use them.

In: the cluster's claims. Out: one line for each claim, and exit status 1 if there are any. It only reads. The chart
runs it before an uninstall, because without the driver a pod with devices can't end, and stays Terminating.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from dra_driver.cli.inputs.access import access_of, access_options
from dra_driver.cli.output import printable, write_document
from dra_driver.model.errors import ExitCode
from dra_driver.model.names import NVIDIA_DRIVER, check_driver_name
from dra_driver.model.wire import Wire
from dra_driver.views.access import unseen_sentences
from dra_driver.views.fleet.cluster import Cluster
from dra_driver.views.fleet.holders import holder_line, holders, holders_document
from dra_driver.views.labels import label_selector
from dra_driver.views.wording import plural


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
        claims = [one for one in cluster.claims() if has_labels(one)]
    finally:
        cluster.close()
    unseen, is_held = cluster.access.unseen, False
    for number, name in enumerate(names):
        found = holders(claims, name)
        is_held |= bool(found)
        if output == "table":
            _show(found, name, is_all=not unseen)
        else:
            if output == "yaml" and number:
                click.echo("---")
            write_document(holders_document(found, name, unseen), output)
    for one in unseen_sentences(unseen):
        print(printable(f"dra-driver: {one}"), file=sys.stderr)
    return ExitCode.NO_MATCH if is_held else ExitCode.ENVIRONMENT if unseen else ExitCode.OK


def _show(found: Sequence[Wire], driver_name: str, *, is_all: bool) -> None:
    for one in found:
        click.echo(printable(holder_line(one)))
    if found:
        verb = "holds" if len(found) == 1 else "hold"
        click.echo(f"{plural(len(found), 'claim')} {verb} devices of {driver_name}: end their pods first.")
    else:
        click.echo(f"No claim{'' if is_all else ' that may be read'} holds a device of {driver_name}.")
