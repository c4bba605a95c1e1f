"""`dra-driver release`: the devices that wait for containers of an ended claim; release one that waits in vain.

In: the ledger in the agent's data folder. Out: lines, or one claim fewer that others wait for.
"""

from __future__ import annotations

import click

from dra_driver.cli.health.folder import data_folder, folder_options
from dra_driver.model.errors import ExitCode, UsageError
from dra_driver.views.node.unreleased_devices import device_names, reason, release, unreleased_claims


@click.command(name="release")
@click.argument("device", required=False)
@click.option("--force", is_flag=True, help="release DEVICE although a container may still use it")
@folder_options
def release_command(device: str | None, *, force: bool, **where: str) -> int:
    """List the devices of this node that no claim gets, because containers of an ended claim may still use them.

    With DEVICE and --force, the device and the others of that claim are released at once. End the process first that
    has the device open: otherwise it and the next claim's use the device at the same time.

    Exit status 1: there are such devices.

    \b
      dra-driver release
      dra-driver release gpu-0000-1b-00-0 --force
    """  # noqa: D301 - \b is for click
    if force != (device is not None):
        raise UsageError(
            "release", "DEVICE and --force are given together, or neither", hint="dra-driver release lists"
        )
    folder = data_folder(**where)
    if device is not None:
        claim = release(folder, device)
        click.echo(f"{device_names(claim)}: released; claim {claim.namespace}/{claim.name} had it.")
        return ExitCode.OK
    claims = unreleased_claims(folder)
    for claim in claims:
        click.echo(f"{device_names(claim)}: claim {claim.namespace}/{claim.name} has ended, but {reason(claim)}.")
    if not claims:
        click.echo("No device waits for a container.")
    return ExitCode.NO_MATCH if claims else ExitCode.OK
