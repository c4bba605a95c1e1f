"""`dra-driver validate`: test devices of this node.

In: devices, and a level. Out: a table or a document; the progress on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from dra_driver.cli.inputs.hardware import hardware_options, settings_of_node
from dra_driver.cli.output import Column, console, show_table, write_document
from dra_driver.model.errors import ExitCode, HardwareError, UsageError
from dra_driver.validation.result import ValidationLevel, ValidationResult, ValidationVerdict
from dra_driver.validation.setting import command_of
from dra_driver.validation.tested_devices import TestedDevice
from dra_driver.views.node.validation import ValidationOrder, chosen_devices, validate_devices, validation_document

_CLEAR = "\r\x1b[K"


@click.command(name="validate")
@click.argument("devices", nargs=-1)
@click.option(
    "--level",
    type=click.Choice(["0", "1", "2"]),
    default=None,
    help="0: read the vendor's library; 1: also compute on the device; 2: also test all of its memory [default: 1]",
)
@click.option("--command", "text", metavar="COMMAND", default="", help="run this instead, without a shell")
@click.option("--timeout", type=click.IntRange(1, 86_400), default=None, help="seconds for each device")
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@hardware_options
def validate_command(
    devices: Sequence[str], level: str | None, text: str, timeout: int | None, output: str, **given: str | None
) -> int:
    """Test DEVICES of this node, or all of its free devices.

    A device is named by its name in `dra-driver devices`, or by the PCI address or UUID of its GPU. A device that a
    claim, a process or another driver uses is not tested; if a claim for it arrives during the test, the test ends. An
    agent on this node taints devices that failed, and offers those that passed.

    Exit status 1: a device failed; 5: a device could not be tested.

    \b
      dra-driver validate --hardware simulated:t4   without a GPU
      dra-driver validate gpu-0000-1b-00-0 --level 2
      dra-driver validate --command '/usr/bin/dcgmi diag -r 1 -i {minor}' -o json
    """  # noqa: D301 - \b is for click
    if text and level is not None:
        raise UsageError("validate", "--level and --command can't be combined", hint="leave one out")
    argv = command_of(text) if text else ()
    order = ValidationOrder(
        ValidationLevel.COMMAND if argv else ValidationLevel(int(level or 1)), argv, float(timeout or 0)
    )
    selected = settings_of_node(given)
    try:
        facts = selected.hardware.discover()
        meant = chosen_devices(facts, devices)
        if not meant:
            why = facts.waiting_for or "there is no GPU"
            raise HardwareError("gpu-unknown", f"nothing on {selected.node} can be tested: {why}")
        rows = list(validate_devices(selected, meant, order, _show_step))
    finally:
        selected.hardware.close()
        _clear()
    if output == "table":
        columns = [Column(name) for name in ("device", "verdict", "seconds", "what was found")]
        show_table(console(), "", columns, [_cells(*row) for row in rows])
    else:
        write_document(validation_document(selected, rows), output)
    return _status([result.verdict for _, result in rows])


def _status(verdicts: Sequence[ValidationVerdict]) -> int:
    if ValidationVerdict.FAILED in verdicts:
        return ExitCode.NO_MATCH
    return ExitCode.ENVIRONMENT if ValidationVerdict.COULD_NOT_RUN in verdicts else ExitCode.OK


def _cells(device: TestedDevice, result: ValidationResult) -> list[str]:
    figures = ", ".join(f"{name} {number}" for name, number in result.figures.items())
    found = f"{result.reason}: {result.detail}" if result.reason else figures
    return [device.name, str(result.verdict), f"{result.seconds:.1f}", found]


def _show_step(device: TestedDevice, step: str) -> None:
    if sys.stderr.isatty():
        print(f"{_CLEAR}{device.name}: {step}", end="", file=sys.stderr)
        sys.stderr.flush()


def _clear() -> None:
    if sys.stderr.isatty():
        print(_CLEAR, end="", file=sys.stderr)
        sys.stderr.flush()
