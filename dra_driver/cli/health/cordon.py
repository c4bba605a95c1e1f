"""`dra-driver cordon`: take a device of this node out of use.

In: a device, a reason, an end. Out: a line in the agent's file of cordons, which the agent reads within seconds.
"""

from __future__ import annotations

import time

import click

from dra_driver.cli.health.folder import data_folder, device_name, folder_options, known_gpus
from dra_driver.cli.health.times import until_of
from dra_driver.cli.output import write_document
from dra_driver.health.cordons import Cordon, CordonFile
from dra_driver.model.errors import ExitCode
from dra_driver.views.node.fault_rows import cordon_document, time_text


@click.command(name="cordon")
@click.argument("device")
@click.option("--reason", required=True, help="the reason, which is shown wherever the device appears as cordoned")
@click.option("--until", default=None, metavar="TIME", help="when the cordon ends: 2h, 7d, or a time [default: never]")
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@folder_options
def cordon_command(device: str, reason: str, until: str | None, output: str, **where: str) -> int:
    """Take DEVICE out of use: no new claim gets it.

    DEVICE is a name from `dra-driver devices`, or the PCI address or UUID of a GPU; a GPU's cordon covers all of its
    partitions and shares. Pods that use it stay. If the API server keeps taints, the device is tainted
    (cordoned:NoSchedule); otherwise it is withheld as soon as it is free. Cordons survive restarts and reboots.

    \b
      dra-driver cordon gpu-0000-1b-00-0 --reason "fan fails" --until 7d
    """  # noqa: D301 - \b is for click
    folder = data_folder(**where)
    now = time.time()
    name = device_name(device, folder)
    cordon = Cordon(name, reason, now, until_of(until, now) if until else None)
    file = CordonFile(folder)
    file.add(cordon)
    if output != "table":
        write_document(cordon_document(name, next(one for one in file.read() if one.device == name)), output)
    else:
        end = f" until {time_text(cordon.until)}" if cordon.until else ""
        click.echo(f"{name} is cordoned{end}.")
    if not known_gpus(folder):
        click.echo("The agent has not recorded its GPUs yet, so the name was not checked.", err=True)
    return ExitCode.OK
