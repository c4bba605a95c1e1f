"""`dra-driver devices`: what this node would publish, what could not be read, and what containers would lack.

In: the hardware of this node (or simulated hardware). Out: a table, or the devices as they appear in ResourceSlices.
It only reads: nothing is published or changed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_driver.base.errors import ExitCode, UsageError
from dra_driver.base.names import pool_name
from dra_driver.base.wire import ShareMode
from dra_driver.node.devices.describing import Device, device_wire, quantity_text
from dra_driver.tools.commands import exit_code_option
from dra_driver.tools.node.report import fault_place
from dra_driver.tools.options import access_of, check_sysfs, hardware_options, settings_of_each
from dra_driver.tools.output import console, print_text, show_devices, write_document, yaml_text
from dra_driver.tools.world.fields import plural
from dra_driver.tools.world.profiles import memory_text

if TYPE_CHECKING:
    from dra_driver.tools.node.report import NodeReport, OfferPreview


@click.command(name="devices")
@hardware_options
@click.option(
    "--fleet",
    "--profile",
    "profile",
    metavar="PROFILE",
    default=None,
    help="a simulated node, as --hardware simulated:PROFILE",
)
@click.option(
    "--kubeconfig",
    envvar="KUBECONFIG",
    metavar="FILE",
    default=None,
    help="the cluster whose API server is asked whether it keeps shared counters [default: the pod's own]",
)
@click.option("--context", metavar="NAME", default="", help="a context of the kubeconfig")
@click.option(
    "--passthrough",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default=None,
    help="also what virtual machines would be offered by this file (version: passthrough/v1)",
)
@click.option(
    "--output", "-o", type=click.Choice(["table", "wide", "json", "yaml", "slices"]), default="table", show_default=True
)
@exit_code_option
def devices_command(
    output: str,
    kubeconfig: str | None,
    context: str,
    passthrough: Path | None,
    profile: str | None,
    *,
    fails: bool,
    **given: str | None,
) -> int:
    """Show what this node would publish.

    \b
    dra-driver devices --fleet dgx-h100                  what a machine that you do not have would publish
    dra-driver devices                                   what this machine would publish
    dra-driver devices --hardware amd --sysfs-root DIR   what a machine would publish whose /sys was copied to DIR

    The GPUs of each vendor have a pool of their own; -o json and yaml write one document for each pool. -o slices
    writes the ResourceSlices of all pools, which other commands read with -f, --slices or from standard input:

    \b
    dra-driver devices --hardware amd --sysfs-root DIR -o slices | dra-driver cel test claim.yaml -

    If GPUs are partitioned on demand, what is published depends on the API server: it is asked, and devices that it
    would not keep are left out. If it does not answer, both cases are shown.

    \b
    The table lists each GPU, MIG partition and share as the scheduler sees it. Below it are:
      not partitioned on demand   GPUs that could have partitions on demand but do not, and why
      shared                      how each shared device is divided, and what replaces it if shares are not kept
      problems                    what could not be read (it is left out, never guessed)
      left out of containers      what containers will not get on this node, and why
      faults                      the faults that this node's agent has found, and cordons, each with its start

    Partitions that are made when a claim needs them are counted as placements; -o wide lists each of them, with UUIDs
    and fabric domains. There is no -n, -A or -l, because a node's hardware has no namespace and no labels.

    Exit status 1: there is nothing to publish, and --exit-code was given; 5: the hardware does not answer.
    """  # noqa: D301
    from dra_driver.tools.node.report import report_document, report_of, slices_of

    access = access_of({"kubeconfig": kubeconfig, "context": context})
    if profile and given["hardware"]:
        raise UsageError("hardware", "--fleet and --hardware both name the hardware: use one of them")
    if profile:
        given["hardware"] = f"simulated:{profile}"
    selections = settings_of_each(given)
    check_sysfs(given)
    reports = [report_of(replace(selected, passthrough=passthrough), access) for selected in selections]
    for place, report in enumerate(reports):
        if output in {"table", "wide"}:
            _show(report, is_wide=output == "wide")
        elif output == "slices":
            for wire in slices_of(report):
                click.echo("---")
                click.echo(yaml_text(wire), nl=False)
        else:
            if output == "yaml" and place:
                click.echo("---")
            write_document(report_document(report), output)
    if any(report.offer.inventory.waiting_for for report in reports):
        return ExitCode.ENVIRONMENT
    has_devices = any(report.offer.devices for report in reports)
    return ExitCode.OK if has_devices or not fails else ExitCode.NO_MATCH


def _show(report: NodeReport, *, is_wide: bool) -> None:
    selected, facts, offer = report.selected, report.facts, report.offer
    out, inventory = console(), offer.inventory
    if offer.devices:
        title = f"pool {pool_name(selected.node, selected.driver)}"
        show_devices(out, title, list(map(device_wire, offer.devices)), is_wide=is_wide)
    else:
        print_text(out, f"Nothing to publish on {selected.node}.")
    driver = f"driver {facts.driver_version}" if facts.driver_version else "driver version unknown"
    gpus = plural(len({gpu.pci_address for gpu in facts.gpus}), f"{facts.vendor} GPU")
    if any(gpu.mig_profiles or gpu.mig_enabled for gpu in facts.gpus):
        gpus += f" ({sum(gpu.mig_enabled for gpu in facts.gpus)} in MIG mode)"
    print_text(out, f"{plural(len(offer.devices), 'device')} from {gpus}, {driver}")
    _show_counting(out, offer, is_wide=is_wide)
    if report.withheld:
        print_text(out, f"the agent publishes none of them: {report.withheld}", style="yellow")
    if inventory.waiting_for:
        print_text(out, f"waiting for: {inventory.waiting_for}", style="yellow")
    for title, lines in (
        ("not partitioned on demand", _exceptions(offer)),
        ("shared", [share_line(d, inventory.offering.instead.get(d.name, ())) for d in offer.devices if d.share]),
        ("problems", [f"{p.subject}: {p.message} [{p.code}]" for p in inventory.problems]),
        ("left out of containers", list(report.left_out)),
        ("faults", [f"{fault_place(o)}: {o['fault']} since {o['since']}: {o['message']}" for o in report.faults]),
    ):
        if lines:
            print_text(out, f"{title}:", style="bold")
            for line in lines:
                print_text(out, line, indent=2)


def _exceptions(offer: OfferPreview) -> list[str]:
    """Return the GPUs that are not partitioned on demand, with one line for each reason."""
    reasons: dict[str, list[str]] = {}
    for address, how in offer.exceptions.items():
        reasons.setdefault(how, []).append(address)
    return [f"{', '.join(addresses)}: {how}" for how, addresses in reasons.items()]


def _show_counting(out: object, offer: OfferPreview, *, is_wide: bool) -> None:
    """Print the condition under which these devices are published, and what is published otherwise."""
    if not offer.is_on_demand:
        return
    if offer.are_counters_kept is not None:
        verb = "keeps" if offer.are_counters_kept else "drops"
        print_text(out, f"{offer.server} {verb} shared counters (gate DRAPartitionableDevices)")
        return
    plain = offer.inventory.offering.plain
    print_text(out, f"This is published if the API server keeps shared counters ({offer.server}).")
    title = f"if it drops them (gate DRAPartitionableDevices off): {plural(len(plain), 'device')}"
    show_devices(out, title, list(map(device_wire, plain)), is_wide=is_wide)


def share_line(device: Device, instead: tuple[Device, ...]) -> str:
    """Return how one shared device is divided, and what replaces it if the API server drops shares."""
    share, policy = device.share, device.policies
    if share is None:
        return ""
    counted = policy.get(share.mode.value)
    if counted is None:
        text = f"{device.attributes['replicas']} replicas"
        text += f" of {_memory(policy['memory'].default)}" if "memory" in policy else ""
    elif share.mode is ShareMode.MEMORY:
        most = f"{_memory(counted.minimum)} to {_memory(counted.maximum)}"
        text = f"shares of {most} in steps of {_memory(counted.step)}, {_memory(counted.default)} if none is asked for"
    else:
        most = f"{counted.minimum} to {counted.maximum} %"
        text = f"shares of {most} in steps of {counted.step}, {counted.default} % if none is asked for"
    elsewhere = f"{len(instead)} replicas {instead[0].name} …" if len(instead) > 1 else "the whole device"
    how = f"strategy {share.strategy or 'none'}, enforcement {share.enforcement}"
    how += f", for namespace {share.tenant} alone" if share.tenant else ""
    return f"{device.name}: {text}; {how}; without DRAConsumableCapacity: {elsewhere}"


def _memory(value: int | None) -> str:
    return "-" if value is None else memory_text(quantity_text("memory", value))
