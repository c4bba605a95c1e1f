"""`dra-driver health`: show the faults that this node's agent has found, and forget GPUs that are gone for good.

In: the agent's files. Out: a table of faults and cordons, or a request that the agent carries out.
"""

from __future__ import annotations

import time

import click

from dra_driver.cli.health.folder import data_folder, device_name, folder_options, known_gpus
from dra_driver.cli.output import Column, console, show_table, write_document
from dra_driver.health.forgetting import ForgetFile
from dra_driver.model.errors import ExitCode, InputError
from dra_driver.model.names import gpu_name
from dra_driver.model.wire import Wire
from dra_driver.views.envelope import DocumentKind, OutputDocument
from dra_driver.views.node.fault_rows import fault_place, fault_rows


@click.group(name="health")
def health_command() -> None:
    """Show what the agent of this node has found about the health of its GPUs."""


@health_command.command(name="show")
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@folder_options
def show(output: str, **where: str) -> int:
    """Show the faults and cordons of this node.

    Exit status 1: there are faults or cordons.

    \b
      dra-driver health show
    """  # noqa: D301 - \b is for click
    rows = fault_rows(data_folder(**where), time.time())
    if output != "table":
        write_document(OutputDocument(DocumentKind.NODE_HEALTH, {"faults": rows or []}), output)
    elif rows:
        columns = [Column(name) for name in ("device", "fault", "value", "since", "what it means")]
        show_table(console(), "", columns, map(_cells, rows))
    else:
        click.echo("No fault, no cordon." if rows is not None else "The agent has recorded nothing yet.")
    return ExitCode.NO_MATCH if rows else ExitCode.OK


@health_command.command(name="forget", short_help="Forget a GPU that was removed from the machine for good.")
@click.argument("device")
@folder_options
def forget(device: str, **where: str) -> int:
    """Forget a GPU that was removed from this machine for good, so that it is no longer reported as missing.

    DEVICE is the GPU's name, PCI address or UUID. The agent does this within seconds.

    \b
      dra-driver health forget gpu-0000-1b-00-0
    """  # noqa: D301 - \b is for click
    folder = data_folder(**where)
    name = device_name(device, folder)
    gpu = next((one for one in known_gpus(folder) if gpu_name(one.pci_address) == name), None)
    if gpu is None:
        raise InputError("device", f"{name} is not a GPU that the agent has seen since the machine was booted")
    ForgetFile(folder).ask(gpu.pci_address)
    click.echo(f"The agent will forget {name}.")
    return ExitCode.OK


def _cells(row: Wire) -> list[str]:
    """Return a fault or cordon as the cells of a table."""
    return [fault_place(row), row["fault"], row["value"] or "", row["since"], row["message"]]
