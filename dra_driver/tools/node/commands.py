"""`dra-driver health`, `cordon`, `uncordon`, `release`, `remediation`: what a node's agent knows and shall do.

In: the agent's files. Out: a table of faults, cordons or remediations, or a request that the agent carries out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from dra_driver.base.errors import ExitCode, InputError, NodeError, UsageError
from dra_driver.base.flags import FLAGS
from dra_driver.base.names import check_driver_name, gpu_name, is_dns_label, normal_pci_address
from dra_driver.base.wire import Wire
from dra_driver.hardware.facts import GpuFacts
from dra_driver.node.health.cases import RemediationCase, RemediationJournal, Stage
from dra_driver.node.health.cordons import Cordon, CordonFile
from dra_driver.node.health.faults import read_gpus
from dra_driver.node.health.monitor import ForgetFile
from dra_driver.node.health.remediation import RemediationRequest, RequestFile
from dra_driver.node.health.stored_health import GPUS, HealthStore
from dra_driver.tools.node.report import (
    action_rows,
    cordon_document,
    fault_place,
    fault_rows,
    release,
    remediation_rows,
    time_text,
    unreleased_claims,
)
from dra_driver.tools.output import Column, console, show_table, write_document
from dra_driver.tools.world.access import DocumentKind, OutputDocument

# The agent's data folder on this node, and the devices that the agent has seen in this boot.

_FIELDS = ("driver_name", "kubelet_plugins_directory_path")


def folder_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that locate the agent's data folder."""
    for flag in (flag for flag in FLAGS if flag.field in _FIELDS):
        text = f"{flag.meaning} [default: {flag.default}] [env {flag.variable}]"
        option = click.option(
            flag.name, flag.field, metavar=flag.metavar, default=flag.default, envvar=flag.variable, help=text
        )
        function = option(function)
    return function


def data_folder(driver_name: str, kubelet_plugins_directory_path: str) -> Path:
    """Return the agent's data folder. Raises: NodeError("node.no-agent") if it does not exist."""
    folder = Path(kubelet_plugins_directory_path).absolute() / check_driver_name(driver_name)
    if not folder.is_dir():
        raise NodeError(
            "no-agent", f"there is no folder {folder}", hint="run this on the node, or in the pod of its agent"
        )
    return folder


def known_gpus(folder: Path) -> tuple[GpuFacts, ...]:
    """Return the GPUs that the agent has seen in this boot; none if it has not written them yet."""
    return read_gpus(HealthStore(folder).read().get(GPUS))


def device_name(text: str, folder: Path) -> str:
    """Return the name of a device that the user names by its name, or by its GPU's PCI address or UUID.

    Raises: InputError("input.device") for a text that can't mean a device of this node.
    """
    gpus = known_gpus(folder)
    for gpu in gpus:
        if text == gpu.uuid:
            return gpu_name(gpu.pci_address)
    try:
        return gpu_name(normal_pci_address(text))
    except ValueError:
        pass
    names = sorted(gpu_name(gpu.pci_address) for gpu in gpus)
    is_here = any(text == name or text.startswith(f"{name}-") for name in names)
    if not is_dns_label(text) or (names and not is_here):
        known = f"the GPUs here are {', '.join(names)}" if names else "see dra-driver devices"
        raise InputError("device", f"{text!r} is not a device of this node", hint=known)
    return text


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
    return [fault_place(row), row["fault"], row["value"] or "", row["since"], row["message"]]


# `dra-driver release`: the devices that wait for containers of an ended claim; release one that waits in vain.


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
        click.echo(f"{', '.join(claim.names)}: released; claim {claim.namespace}/{claim.name} had it.")
        return ExitCode.OK
    claims = unreleased_claims(folder)
    for claim in claims:
        click.echo(f"{', '.join(claim.names)}: claim {claim.namespace}/{claim.name} has ended, but {claim.reason}.")
    if not claims:
        click.echo("No device waits for a container.")
    return ExitCode.NO_MATCH if claims else ExitCode.OK


# The end of a cordon, which users write as a duration from now or as a time.

_DURATION = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def until_of(text: str, now: float) -> float:
    """Return the time in seconds since 1970.

    Raises: UsageError("usage.until") for a text that is not a time, or for a time that has passed.
    """
    match = _DURATION.fullmatch(text)
    if match:
        return now + int(match[1]) * _UNITS[match[2]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise UsageError("until", f"--until={text!r} is not a time", hint="for example 2h, 7d or 2027-01-31T08:00:00Z")
    if at.timestamp() <= now:
        raise UsageError("until", f"--until={text} has passed")
    return at.timestamp()


# `dra-driver cordon`: take a device of this node out of use.


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


_REMEDIATION_COLUMNS = ("device", "fault", "action", "tries", "stage", "since", "what it waits for")


@click.group(name="remediation")
def remediation_command() -> None:
    """Show and control what the agent of this node does about GPUs that need a reset or a reboot."""


@remediation_command.command(name="show")
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@folder_options
def show_remediations(output: str, **where: str) -> int:
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
        show_table(console(), "", [Column(name) for name in _REMEDIATION_COLUMNS], map(_remediation_cells, rows))
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
    case = _unfinished_case(RemediationJournal(folder).cases(), name)
    RequestFile(folder).ask(case.gpu, request)
    click.echo(f"The agent will {words} {name}.")
    return ExitCode.OK


def _unfinished_case(cases: tuple[RemediationCase, ...], name: str) -> RemediationCase:
    """Return the unfinished remediation of a GPU. Raises: InputError("input.device") if it has none."""
    found = {gpu_name(case.gpu): case for case in cases if case.stage is not Stage.RETURNED}
    if name not in found:
        hint = f"in remediation: {', '.join(sorted(found))}" if found else "dra-driver remediation show"
        raise InputError("device", f"{name} is not in remediation", hint=hint)
    return found[name]


def _remediation_cells(row: Wire) -> list[str]:
    fault = f"{row['fault']} {row['value']}".rstrip()
    return [row["device"], fault, row["action"], str(row["tries"]), row["stage"], row["stageSince"], row["message"]]
