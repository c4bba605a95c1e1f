"""Validation of this node's devices by hand: which are tested, who has them, and what was found.

In: the settings of a node, the devices to test. Out: a row for each device. A device that is in use is not touched.
Results are handed to an agent on this node, which taints devices that failed and offers those that passed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from dra_driver.hardware.facts import Facts, GpuFacts, PartitionFacts
from dra_driver.hardware.port import HealthReporter
from dra_driver.health.fault import SENTENCES
from dra_driver.health.indications import EarlierReadings, indications_of
from dra_driver.health.policy import DEFAULT_RULES
from dra_driver.model.errors import DriverError, InputError
from dra_driver.model.names import normal_pci_address, pool_name
from dra_driver.model.wire import Wire
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.neighbours.leftovers import read_leftovers
from dra_driver.plugin.node_claims.device_holders import held_among, holding_claims, processes_on
from dra_driver.plugin.node_claims.pod_resources import PodResources
from dra_driver.validation.manual_results import ResultsFile
from dra_driver.validation.result import ValidationLevel, ValidationResult
from dra_driver.validation.tested_devices import TestedDevice, devices_of, unshared_name
from dra_driver.validation.turn import ValidationTurn
from dra_driver.validation.validator import DEADLINES, Validator
from dra_driver.views.envelope import DocumentKind, OutputDocument
from dra_driver.views.node.report import withheld_reason
from dra_driver.views.node.settings import Chosen

READING_SECONDS = 5.0
Told = Callable[[TestedDevice, str], None]  # a device, and the step of its test that begins


@dataclass(frozen=True, slots=True)
class ValidationOrder:
    """How to test: a level, the command of level COMMAND, a deadline for each device in seconds (0: the usual one)."""

    level: ValidationLevel
    command: tuple[str, ...] = ()
    deadline_s: float = 0.0


class PresentHolders:
    """Who has the devices of this node, according to everything that can be read here."""

    def __init__(self, selected: Chosen) -> None:
        self._selected = selected
        path = selected.data / "ledger.db"
        self._ledger = Ledger(path, reads_only=True) if path.exists() else None

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()

    def holder_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return who uses a device, in words; empty if it is free."""
        device = unshared_name(gpu, partition)
        return (
            self._serving
            or self.claims_of(device)
            or self._pods_with(device)
            or processes_on(self._selected.hardware, gpu, partition)
        )

    def claims_of(self, device: str) -> str:
        """Return which claims the ledger has for a device, in words; empty for none."""
        return holding_claims(self._ledger, device) if self._ledger is not None else ""

    def fault_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return the GPU's present fault, by the vendor's library, if it keeps pods away; empty if there is none."""
        del partition
        return self._faults.get(gpu.pci_address, "")

    @cached_property
    def _serving(self) -> str:
        """Return which other driver may hand out or hold any of the devices."""
        left = read_leftovers(self._selected.cdi, self._selected.driver)
        return withheld_reason(self._selected) or (
            f"another driver's claim {next(iter(left))} holds one" if left else ""
        )

    def _pods_with(self, device: str) -> str:
        """Return whether the kubelet reports a claim with the device; no answer counts as yes."""
        selected = self._selected
        socket = selected.registrar.parent / "pod-resources/kubelet.sock"
        if not socket.exists():
            return ""
        pool = pool_name(selected.node, selected.driver)
        try:
            claims = PodResources(socket, selected.driver).pods().claims.values()
        except DriverError as error:
            return f"it can't be read which claims pods have: {error}"
        return held_among([one.device for claim in claims for one in claim.devices if one.pool == pool], device)

    @cached_property
    def _faults(self) -> dict[str, str]:
        """Read the vitals of all GPUs once; return the worst fault of each that has one."""
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
    """Return the devices that are named by name, UUID or a GPU's PCI address; all devices if none is named.

    Raises: InputError("input.device") for a name that is not a device here, listing those that are.
    """
    every = tuple(one for gpu in facts.gpus for one in devices_of(gpu))
    found: dict[str, TestedDevice] = {}
    for text in wanted:
        meant = [one for one in every if _is_meant(one, text)]
        if not meant:
            known = ", ".join(one.name for one in every) or "there is none"
            raise InputError("device", f"{text!r:.80} is no device that can be tested here", hint=known)
        found.update({one.uuid: one for one in meant})
    return tuple(found.values()) if wanted else every


def validate_devices(
    selected: Chosen, devices: Sequence[TestedDevice], order: ValidationOrder, told: Told
) -> Iterator[tuple[TestedDevice, ValidationResult]]:
    """Test devices one after the other, and yield each with its result. Results go to an agent on this node too."""
    holders = PresentHolders(selected)
    deadlines = {**DEADLINES, order.level: order.deadline_s or DEADLINES.get(order.level, 0.0)}
    with _turn_folder(selected.data) as folder:
        validator = Validator(
            selected.hardware, ValidationTurn(folder), holders, command=order.command, deadlines=deadlines
        )
        try:
            for one in devices:
                result = validator.validate(one.gpu, one.partition, order.level, partial(told, one))
                if result.is_conclusive and result.level is not ValidationLevel.READING and selected.data.is_dir():
                    ResultsFile(selected.data).add(one.uuid, result)
                yield one, result
        finally:
            holders.close()


@contextmanager
def _turn_folder(data: Path) -> Iterator[Path]:
    """Yield the agent's folder or, without one, a folder of this command's own: a container has no folder for that."""
    if data.is_dir():
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="dra-driver-") as alone:
        yield Path(alone)


def validation_document(selected: Chosen, rows: Sequence[tuple[TestedDevice, ValidationResult]]) -> OutputDocument:
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
