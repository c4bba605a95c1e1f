"""`dra-driver remediation`: show and control what this node's agent does about GPUs that need a reset or a reboot.

In: the agent's files. Out: a table of its journal, or a request that the agent carries out.
"""

from __future__ import annotations

import click

from dra_driver.base.errors import ExitCode, InputError
from dra_driver.base.names import gpu_name
from dra_driver.base.wire import Wire
from dra_driver.node.health.cases import RemediationCase, RemediationJournal, Stage
from dra_driver.node.health.remediation import RemediationRequest, RequestFile
from dra_driver.tools.node.commands import data_folder, device_name, folder_options
from dra_driver.tools.node.fault_rows import action_rows, remediation_rows
from dra_driver.tools.output import Column, console, show_table, write_document
from dra_driver.tools.world.access import DocumentKind, OutputDocument

_COLUMNS = ("device", "fault", "action", "tries", "stage", "since", "what it waits for")


@click.group(name="remediation")
def remediation_command() -> None:
    """Show and control what the agent of this node does about GPUs that need a reset or a reboot."""


@remediation_command.command(name="show")
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@folder_options
def show(output: str, **where: str) -> int:
    """Show the last remediation of each GPU, and the actions of the last weeks.

    Exit status 1: the remediation of a GPU is under way, or waits for a person.

    \b
      dra-driver remediation show
    """  # noqa: D301 - \b is for click
    folder = data_folder(**where)
    rows = remediation_rows(folder)
    if output != "table":
        content = {"remediations": rows, "actions": action_rows(folder)}
        write_document(OutputDocument(DocumentKind.NODE_REMEDIATION, content), output)
    elif rows:
        show_table(console(), "", [Column(name) for name in _COLUMNS], map(_cells, rows))
    else:
        click.echo("No GPU was ever remediated.")
    return ExitCode.NO_MATCH if any(row["stage"] != Stage.RETURNED for row in rows) else ExitCode.OK


@remediation_command.command(name="retry", short_help="Start the remediation of a GPU again.")
@click.argument("device")
@folder_options
def retry(device: str, **where: str) -> int:
    """Start the remediation of a GPU again, as if nothing had been tried. The weekly budgets still apply.

    DEVICE is the GPU's name, PCI address or UUID. The agent begins within seconds.

    \b
      dra-driver remediation retry gpu-0000-1b-00-0
    """  # noqa: D301 - \b is for click
    return _ask(device, RemediationRequest.RETRY, "start again with", where)


@remediation_command.command(name="give-up", short_help="Stop trying, and keep a GPU out of use.")
@click.argument("device")
@folder_options
def give_up(device: str, **where: str) -> int:
    """Stop trying, and keep a GPU out of use until a person has looked at it.

    DEVICE is the GPU's name, PCI address or UUID. The agent stops when the present step has ended.

    \b
      dra-driver remediation give-up gpu-0000-1b-00-0
    """  # noqa: D301 - \b is for click
    return _ask(device, RemediationRequest.GIVE_UP, "stop trying with", where)


@remediation_command.command(name="done", short_help="Test a GPU that a person has repaired, and offer it again.")
@click.argument("device")
@folder_options
def done(device: str, **where: str) -> int:
    """Let the agent test a GPU that a person has repaired, and offer it again.

    DEVICE is the GPU's name, PCI address or UUID. The agent begins within seconds.

    \b
      dra-driver remediation done gpu-0000-1b-00-0
    """  # noqa: D301 - \b is for click
    return _ask(device, RemediationRequest.DONE, "test and return", where)


def _ask(device: str, request: RemediationRequest, words: str, where: dict[str, str]) -> int:
    folder = data_folder(**where)
    name = device_name(device, folder)
    case = _case(RemediationJournal(folder).cases(), name)
    RequestFile(folder).ask(case.gpu, request)
    click.echo(f"The agent will {words} {name}.")
    return ExitCode.OK


def _case(cases: tuple[RemediationCase, ...], name: str) -> RemediationCase:
    """Return the unfinished remediation of a GPU. Raises: InputError("input.device") if it has none."""
    found = {gpu_name(case.gpu): case for case in cases if case.stage is not Stage.RETURNED}
    if name not in found:
        hint = f"in remediation: {', '.join(sorted(found))}" if found else "dra-driver remediation show"
        raise InputError("device", f"{name} is not in remediation", hint=hint)
    return found[name]


def _cells(row: Wire) -> list[str]:
    """Return a remediation as the cells of a table."""
    fault = f"{row['fault']} {row['value']}".rstrip()
    return [row["device"], fault, row["action"], str(row["tries"]), row["stage"], row["stageSince"], row["message"]]
