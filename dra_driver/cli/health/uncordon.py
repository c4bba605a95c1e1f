"""`dra-driver uncordon`: end a cordon."""

from __future__ import annotations

import click

from dra_driver.cli.health.folder import data_folder, device_name, folder_options
from dra_driver.cli.output import write_document
from dra_driver.health.cordons import CordonFile
from dra_driver.model.errors import ExitCode
from dra_driver.views.node.fault_rows import cordon_document


@click.command(name="uncordon")
@click.argument("device")
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@folder_options
def uncordon_command(device: str, output: str, **where: str) -> int:
    """End the cordon of DEVICE.

    Exit status 1: it was not cordoned.

    \b
      dra-driver uncordon gpu-0000-1b-00-0
    """  # noqa: D301 - \b is for click
    folder = data_folder(**where)
    file = CordonFile(folder)
    name, was_cordoned = device, file.remove(device)  # also one that is gone
    if not was_cordoned:
        name = device_name(device, folder)
        was_cordoned = file.remove(name)
    if output != "table":
        write_document(cordon_document(name, None), output)
    else:
        click.echo(f"{name} is not cordoned any more." if was_cordoned else f"{name} was not cordoned.")
    return ExitCode.OK if was_cordoned else ExitCode.NO_MATCH
