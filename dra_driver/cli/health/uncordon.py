"""`dra-driver uncordon`: end a cordon."""

from __future__ import annotations

import click

from dra_driver.cli.health.folder import data_folder, device_name, folder_options
from dra_driver.health.cordons import CordonFile
from dra_driver.model.errors import ExitCode


@click.command(name="uncordon")
@click.argument("device")
@folder_options
def command(device: str, **where: str) -> int:
    """End the cordon of DEVICE.

    Exit status 1: it was not cordoned.

    \b
      dra-driver uncordon gpu-0000-1b-00-0
    """  # noqa: D301 - \b is for click
    folder = data_folder(**where)
    file = CordonFile(folder)
    name = device if any(one.device == device for one in file.read()) else device_name(device, folder)
    if file.remove(name):
        click.echo(f"{name} is not cordoned any more.")
        return ExitCode.OK
    click.echo(f"{name} was not cordoned.")
    return ExitCode.NO_MATCH
