"""Validation of this node's devices by `dra-driver validate`.

In: the settings of a node, and the devices to test. Out: the result of each. A device that is in use is not tested.
Results are passed to an agent on this node, which taints devices that failed and offers those that passed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import click

from dra_driver.base.errors import DriverError, ExitCode, HardwareError, InputError, UsageError
from dra_driver.base.names import normal_pci_address, pool_name
from dra_driver.base.wire import Wire
from dra_driver.hardware.facts import Facts, GpuFacts, PartitionFacts
from dra_driver.hardware.port import HealthReporter
from dra_driver.node.health.faults import DEFAULT_RULES, SENTENCES
from dra_driver.node.health.validation import ValidationLevel, ValidationResult, ValidationVerdict, command_of
from dra_driver.node.health.validation_results import ResultsFile
from dra_driver.node.health.validator import (
    DEADLINES,
    TestedDevice,
    Validator,
    devices_of,
    held_among,
    holding_claims,
    processes_on,
    unshared_name,
)
from dra_driver.node.health.xids import EarlierReadings, indications_of
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import ValidationLock
from dra_driver.node.neighbours.allocations import read_leftovers
from dra_driver.node.neighbours.pod_resources import PodResources
from dra_driver.tools.node.report import withheld_reason
from dra_driver.tools.options import hardware_options, settings_of_node
from dra_driver.tools.output import Column, console, show_table, write_document
from dra_driver.tools.world.access import DocumentKind, OutputDocument
from dra_driver.tools.world.profiles import NodeSettings

READING_SECONDS = 5.0
ShowStep = Callable[[TestedDevice, str], None]  # is called with a device and the step of its test that begins


@dataclass(frozen=True, slots=True)
class ValidationOrder:
    """How to test: the level, the command of level COMMAND, and a deadline in seconds for each device (0: default)."""

    level: ValidationLevel
    command: tuple[str, ...] = ()
    deadline_s: float = 0.0


class CurrentHolders:
    """Who uses the devices of this node: claims of the ledger, pods of the kubelet, processes, or another driver."""

    def __init__(self, selected: NodeSettings) -> None:
        self._selected = selected
        path = selected.data / "ledger.db"
        self._ledger = Ledger(path, reads_only=True) if path.exists() else None

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()

    def holder_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return who uses a device, as text; "" if it is free."""
        device = unshared_name(gpu, partition)
        return (
            self._serving
            or self.claims_of(device)
            or self._pods_with(device)
            or processes_on(self._selected.hardware, gpu, partition)
        )

    def claims_of(self, device: str) -> str:
        """Return the claims that the ledger has for a device, as text; "" for none."""
        return holding_claims(self._ledger, device) if self._ledger is not None else ""

    def fault_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return the GPU's present fault, as the vendor's library reports it, if it keeps pods away; "" for none."""
        del partition
        return self._faults.get(gpu.pci_address, "")

    @cached_property
    def _serving(self) -> str:
        """The other driver that serves the devices of this node or holds one, as text; "" if there is none."""
        left = read_leftovers(self._selected.cdi, self._selected.driver)
        return withheld_reason(self._selected) or (
            f"another driver's claim {next(iter(left))} holds one" if left else ""
        )

    def _pods_with(self, device: str) -> str:
        """Return which pod's claim has a device according to the kubelet; if it does not answer, why not."""
        selected = self._selected
        socket = selected.registrar.parent / "pod-resources/kubelet.sock"
        if not socket.exists():
            return ""
        pool = pool_name(selected.node, selected.driver)
        try:
            claims = PodResources(socket, selected.driver).pods().claims.values()
        except DriverError as error:
            return f"the claims of pods can't be read: {error}"
        return held_among([one.device for claim in claims for one in claim.devices if one.pool == pool], device)

    @cached_property
    def _faults(self) -> dict[str, str]:
        """The worst present fault of each GPU that has one; all GPUs are read once."""
        hardware = self._selected.hardware
        if not isinstance(hardware, HealthReporter):
            return {}
        hardware.watch_health(lambda: None, log_position=1 << 62)
        try:
            readings = hardware.health(is_urgent=True, patience_s=READING_SECONDS).readings
        finally:
            hardware.end_health()
        found = {}
        for reading in readings:
            bad = [one for one in indications_of(reading, EarlierReadings()) if one.is_bad and not one.is_mild]
            worst = next(
                (one for one in sorted(bad, key=lambda o: o.key.rank) if DEFAULT_RULES[one.key].effect.is_blocking),
                None,
            )
            if worst is not None:
                found[reading.gpu] = f"{worst.key}: {SENTENCES[worst.key]}"
        return found


def chosen_devices(facts: Facts, wanted: Sequence[str]) -> tuple[TestedDevice, ...]:
    """Return the devices with a name, a UUID or a GPU's PCI address in `wanted`; all devices if `wanted` is empty.

    Raises: InputError("input.device") for a text that names no device of this node; the hint lists the devices.
    """
    every = tuple(device for gpu in facts.gpus for device in devices_of(gpu))
    found: dict[str, TestedDevice] = {}
    for text in wanted:
        meant = [one for one in every if _is_meant(one, text)]
        if not meant:
            known = ", ".join(one.name for one in every) or "there is none"
            raise InputError("device", f"{text!r:.80} is no device that can be tested here", hint=known)
        found.update({one.uuid: one for one in meant})
    return tuple(found.values()) if wanted else every


def validate_devices(
    selected: NodeSettings, devices: Sequence[TestedDevice], order: ValidationOrder, show_step: ShowStep
) -> Iterator[tuple[TestedDevice, ValidationResult]]:
    """Test devices one after the other, and yield each with its result, which an agent on this node gets as well."""
    holders = CurrentHolders(selected)
    deadlines = {**DEADLINES, order.level: order.deadline_s or DEADLINES.get(order.level, 0.0)}
    with _turn_folder(selected.data) as folder:
        validator = Validator(
            selected.hardware, ValidationLock(folder), holders, command=order.command, deadlines=deadlines
        )
        try:
            for device in devices:
                result = validator.validate(device.gpu, device.partition, order.level, partial(show_step, device))
                if result.is_conclusive and result.level is not ValidationLevel.READING and selected.data.is_dir():
                    ResultsFile(selected.data).add(device.uuid, result)
                yield device, result
        finally:
            holders.close()


@contextmanager
def _turn_folder(data: Path) -> Iterator[Path]:
    """Yield the agent's folder; if there is none, as in a container, a temporary folder."""
    if data.is_dir():
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="dra-driver-") as alone:
        yield Path(alone)


def validation_document(
    selected: NodeSettings, rows: Sequence[tuple[TestedDevice, ValidationResult]]
) -> OutputDocument:
    """Return the document of results."""
    content = {"node": selected.node, "driver": selected.driver, "devices": [_row(*row) for row in rows]}
    return OutputDocument(DocumentKind.VALIDATION, content)


def _row(device: TestedDevice, result: ValidationResult) -> Wire:
    return {
        "device": device.name,
        "uuid": device.uuid,
        "level": int(result.level),
        "verdict": str(result.verdict),
        "code": result.reason or None,
        "message": result.detail,
        "seconds": round(result.seconds, 3),
        "figures": dict(result.figures),
    }


def _is_meant(device: TestedDevice, text: str) -> bool:
    if text in {device.name, device.uuid, device.gpu.uuid, unshared_name(device.gpu, None)}:
        return True
    try:
        return normal_pci_address(text) == device.gpu.pci_address
    except ValueError:
        return False


# `dra-driver validate`: test devices of this node.

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
