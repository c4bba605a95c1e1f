"""`dra-driver in-use`: the claims that hold devices of this driver, with the pods that use them.

In: the cluster's claims. Out: one line for each claim, and exit status 1 if there are any. It only reads. The chart
runs it before an uninstall: without the driver a pod can't be unprepared, and stays Terminating.
"""

from __future__ import annotations

import click

from dra_driver.cli.output import write_document
from dra_driver.model.errors import ExitCode
from dra_driver.model.names import NVIDIA_DRIVER, check_driver_name
from dra_driver.views.fleet.cluster import Cluster
from dra_driver.views.fleet.holders import holder_line, holders, holders_document
from dra_driver.views.words import plural


@click.command(name="in-use")
@click.option(
    "--driver-name",
    envvar="DRIVER_NAME",
    default=NVIDIA_DRIVER,
    show_default=True,
    help="the driver whose devices are meant [env DRIVER_NAME]",
)
@click.option(
    "--kubeconfig",
    envvar="KUBECONFIG",
    metavar="FILE",
    default=None,
    help="the cluster (default: the pod's ServiceAccount) [env KUBECONFIG]",
)
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def command(driver_name: str, kubeconfig: str | None, output: str) -> int:
    """List the claims that hold devices of this driver.

    Exit status 1: there are some; 5: the API server was not reached.
    """
    found = holders(Cluster(kubeconfig).claims(), check_driver_name(driver_name))
    if output != "table":
        write_document(holders_document(found, driver_name), output)
        return ExitCode.NO_MATCH if found else ExitCode.OK
    for one in found:
        click.echo(holder_line(one))
    if not found:
        click.echo(f"No claim holds a device of {driver_name}.")
        return ExitCode.OK
    verb = "holds" if len(found) == 1 else "hold"
    click.echo(f"{plural(len(found), 'claim')} {verb} devices of {driver_name}: end their pods first.")
    return ExitCode.NO_MATCH
