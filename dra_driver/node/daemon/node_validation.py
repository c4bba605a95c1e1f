"""Validation gate: if tests are switched on, no device of this node is offered before it has passed one.

In: the inventory, results of tests, the faults that the health monitor knows. Out: the devices that are held back, and
those that have failed. Tests run one after the other in a thread of their own. A device is tested if it has neither
been tested nor been in use in this boot. If a claim gets the device during its test, the test ends, and the device
counts as in use from then on.

A test that could not run is tried again, because a fabric manager may start minutes after the GPUs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dra_driver.base.errors import DriverError
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.kube.api import NodeEvents
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.devices.offering import CurrentInventory, Inventory
from dra_driver.node.health.faults import Fault, FaultKey, Subject
from dra_driver.node.health.taints import is_within
from dra_driver.node.health.validation import HELD, INTERRUPTED, ValidationLevel, ValidationResult
from dra_driver.node.health.validation_results import NodeVerdicts, ResultsFile, ValidationRecords, verdicts_of_node
from dra_driver.node.health.validator import TestedDevice, devices_to_test, held_among
from dra_driver.node.slices.scanner import ChangeListener, place_of

if TYPE_CHECKING:
    from dra_driver.node.health.validator import Validator

RETRY_SECONDS, MAX_TRIES = 60.0, 10


@dataclass(frozen=True, slots=True)
class _Tries:
    """How often a test could not run, and when (monotonic) it is tried again."""

    count: int
    due: float


class RetriedTests:
    """The devices whose test could not run, by UUID. After so many tries a test is not tried again."""

    def __init__(self) -> None:
        self._tries: dict[str, _Tries] = {}

    def __contains__(self, uuid: str) -> bool:
        """Return whether the test of a device could not run."""
        return uuid in self._tries

    def add(self, uuid: str) -> None:
        """Record that the test of a device could not run now."""
        count = self._tries[uuid].count + 1 if uuid in self._tries else 1
        due = time.monotonic() + RETRY_SECONDS if count < MAX_TRIES else float("inf")
        self._tries[uuid] = _Tries(min(count, MAX_TRIES), due)

    def forget(self, uuid: str) -> None:
        """Forget a device: it has been tested, is in use, or has to be tested anew."""
        self._tries.pop(uuid, None)

    def due(self, among: Container[str]) -> list[str]:
        """Return the devices, of these, whose test is to be tried now."""
        now = time.monotonic()
        return [uuid for uuid, one in self._tries.items() if uuid in among and one.due <= now]

    def pause_s(self, among: Container[str]) -> float | None:
        """Return the time until a test of one of these devices is tried again; None for never."""
        dues = [one.due for uuid, one in self._tries.items() if uuid in among and one.count < MAX_TRIES]
        return max(0.0, min(dues) - time.monotonic()) if dues else None


log = logging.getLogger(__name__)

UNSURE_SECONDS = 2.0
BATCH_SECONDS = 30.0  # devices that pass are offered together, because each new device changes many slices of a pool
STOP_SECONDS = 3.0
NODE_AT_FAULT = "DevicesNotValidated"
# A GPU with one of these is not tested before the fault is over.
UNTESTABLE = frozenset(
    [FaultKey.GPU_LOST, FaultKey.NEEDS_REBOOT, FaultKey.NEEDS_RESET, FaultKey.NEEDS_ATTENTION, FaultKey.NOT_ANSWERING]
)


class HeldDevices(Protocol):
    """The devices that claims hold on this node."""

    def held(self) -> frozenset[str]:
        """Return the names of the devices that claims hold or are allocated. Raises: DriverError."""


class ValidationGate(AgentPart):
    """The gate of one node. Any thread may call any method.

    Args:
        validator: tests devices; None at level READING.
        records: the results from before.
        folder: the agent's own folder, where a command leaves the results of tests that a person started.
        level: how devices are tested; with READING none is tested, and only the results of such commands count.
        inventory: the inventory of this node.
        claims: knows the devices that claims have.
        events: the Events of the node.
        listener: is called when the devices that are held back, or that have failed, may have changed.
    """

    def __init__(
        self,
        validator: Validator | None,
        records: ValidationRecords,
        folder: Path,
        *,
        level: ValidationLevel,
        inventory: CurrentInventory,
        claims: HeldDevices,
        events: NodeEvents,
        listener: ChangeListener,
    ) -> None:
        self._validator, self._records, self._file = validator, records, ResultsFile(folder)
        self._level, self._inventory, self._claims = level, inventory, claims
        self._events, self._listener = events, listener
        self._mutex = threading.RLock()  # guards everything below
        self._loop = Loop("validation", self._turn, failure="validation failed", hang_s=math.inf)
        self._is_running = False
        self._devices: Mapping[str, TestedDevice] = {}  # by UUID
        self._examined: frozenset[str] | None = None  # None until it is known which devices claims have
        self._retried = RetriedTests()
        self._faulty: frozenset[Subject] = frozenset()
        # None until the monitor has reported the failed tests that are faults.
        self._tainted: frozenset[Subject] | None = None
        self._verdicts = NodeVerdicts()
        self._released_at = float("-inf")  # when devices were last released (monotonic)

    def start(self) -> None:
        """Begin to test: this instance got the node's role."""
        with self._mutex:
            self._is_running = True
            self._examined = None
            self._load()  # again, because until now another instance has written
            if self._validator is not None:
                self._validator.resume()
            self._loop.start()
        self.inventory_changed()

    def _load(self) -> bool:
        """Read the records, and return whether that was possible; from then on they are written."""
        if not self._records.load():
            return False
        if self._validator is not None:
            self._records.begin(self._driver)
        return True

    def stop(self) -> None:
        """End the test that is running, and begin no other."""
        with self._mutex:
            self._is_running = False
        if self._validator is not None:
            self._validator.stop()
        self._loop.stop(STOP_SECONDS)

    @property
    def is_needed(self) -> bool:
        """Return whether there are results that a later agent would otherwise have to produce again."""
        return not self._records.is_empty

    def verdicts(self) -> Mapping[str, int]:
        """Return how many devices of this node have each verdict."""
        with self._mutex:
            return self._records.verdicts(self._devices, self._driver)

    def figures(self) -> Mapping[str, Mapping[str, int]]:
        """Return the verdicts for the metrics."""
        return {"validations": self.verdicts()}

    def inventory_changed(self) -> None:
        """Take over the devices of the newest inventory; this has to be called before the inventory is offered."""
        with self._mutex:
            if not self._is_running:
                return
            self._devices = {device.uuid: device for device in devices_to_test(self._inventory.current)}
            self._examine()
            if not self._is_examined():
                self._loop.wake()
        self._conclude()

    def retest(self, uuid: str) -> None:
        """Test a GPU again although it has been in use, because a virtual machine had it; hold it back until then."""
        with self._mutex:
            if self._validator is None or not self._is_running:
                return
            self._records.forget(uuid)
            self._retried.forget(uuid)
            self._examined = frozenset({*(self._examined or ()), uuid}) if self._examined is not None else None

    def withheld(self, inventory: Inventory) -> frozenset[str] | None:
        """Return the names of the devices that are not offered yet; None while that is not known."""
        with self._mutex:
            if self._examined is None or any(one.uuid not in self._examined for one in devices_to_test(inventory)):
                return None
            failed = self._verdicts.failed.keys()
            if failed and self._tainted is None:
                return None
            # A device that failed is offered only together with its taint.
            subjects = self._verdicts.withheld | (failed - (self._tainted or frozenset()))
        places = map(place_of, inventory.offering.every()) if subjects else ()
        return frozenset(place.name for place in places if any(is_within(place, subject) for subject in subjects))

    def failed(self, faults: Iterable[Fault]) -> Mapping[Subject, str] | None:
        """Return which devices failed, with the reason; None while that is not known.

        The health monitor calls this in each of its turns, with the current faults: faulty GPUs are not tested.
        """
        faults = tuple(faults)
        faulty = frozenset(fault.subject for fault in faults if fault.key in UNTESTABLE)
        tainted = frozenset(fault.subject for fault in faults if fault.key is FaultKey.UNVALIDATED)
        by_hand = self._file.take()
        with self._mutex:
            for uuid, result in by_hand.items():
                if uuid in self._devices and result.is_conclusive:
                    self._retried.forget(uuid)
                    self._records.add_result(uuid, self._driver, result)
            before, self._faulty, self._tainted = (self._faulty, self._tainted), faulty, tainted
        if by_hand or before != (faulty, tainted):
            self._conclude(is_news=before[1] != tainted)
        with self._mutex:
            return self._verdicts.failed if self._examined is not None else None

    @property
    def _driver(self) -> str:
        return self._inventory.current.driver_version or ""

    def _examine(self) -> None:
        """Record which of the devices are already in use, because claims have them."""
        new = [one for one in self._devices.values() if self._examined is None or one.uuid not in self._examined]
        if not new and self._examined is not None:
            return
        if not self._records.is_loaded and not self._load():
            self._loop.wake()
            return
        try:
            held = self._claims.held() if self._validator is not None else frozenset[str]()
        except DriverError as error:
            log.info("cannot determine which devices claims have", extra=fields(err=str(error)))
            return
        if self._devices:
            self._records.set_driver(self._driver)
        self._records.add_served([one.uuid for one in new if held_among(held, one.name)], self._driver)
        self._examined = frozenset(self._devices)

    def _is_examined(self) -> bool:
        return self._examined is not None and self._examined.issuperset(self._devices)

    def _turn(self) -> float | None:
        with self._mutex:
            if not self._is_running:
                return None
            if not self._is_examined():
                self._examine()
            if not self._is_examined():
                return UNSURE_SECONDS
            device = self._next()
        self._conclude()
        if device is None or self._validator is None:
            return self._pause()
        log.info("testing a device", extra=fields(device=device.name, step=f"level {int(self._level)}"))
        result = self._validator.validate(device.gpu, device.partition, self._level)
        self._take(device, result)
        return 0.0

    def _pending(self) -> list[TestedDevice]:
        if self._validator is None:
            return []
        return [
            one
            for uuid, one in self._devices.items()
            if uuid not in self._retried and self._records.of(uuid, self._driver) is None and not self._is_faulty(one)
        ]

    def _next(self) -> TestedDevice | None:
        due = [self._devices[uuid] for uuid in self._retried.due(self._devices)]
        return next(iter([*self._pending(), *(one for one in due if not self._is_faulty(one))]), None)

    def _pause(self) -> float:
        """Return the time until a test is tried again; infinity for never."""
        with self._mutex:
            pause = self._retried.pause_s(self._devices)
        return math.inf if pause is None else pause

    def _is_faulty(self, device: TestedDevice) -> bool:
        subject = device.subject
        return Subject(subject.gpu) in self._faulty or subject in self._faulty

    def _take(self, device: TestedDevice, result: ValidationResult) -> None:
        why = f"{result.reason} {result.detail}".strip()
        keys = {"status": str(result.verdict), **({"problem": why} if why else {})}
        log.info("device tested", extra=fields(device=device.name, took_ms=round(result.seconds * 1000), **keys))
        with self._mutex:
            if result.is_conclusive and result.level is not ValidationLevel.READING:
                self._retried.forget(device.uuid)
                self._records.add_result(device.uuid, self._driver, result)
            elif result.reason in {HELD, INTERRUPTED} and self._is_claimed(device):
                self._retried.forget(device.uuid)
                self._records.add_served([device.uuid], self._driver)
            else:
                self._retried.add(device.uuid)
                self._records.add_attempt(device.uuid, device.name, self._driver, result)
        self._conclude()

    def _is_claimed(self, device: TestedDevice) -> bool:
        try:
            return bool(held_among(self._claims.held(), device.name))
        except DriverError:
            return True

    def _conclude(self, *, is_news: bool = False) -> None:
        """Compute what follows from all results, and report it if it has changed or `is_news` is true."""
        with self._mutex:
            if not self._is_running or self._examined is None:
                return
            known = {one.subject: self._records.of(uuid, self._driver) for uuid, one in self._devices.items()}
            pending = self._pending()
            now = verdicts_of_node(known, [one.subject for one in pending])
            if pending and time.monotonic() - self._released_at < BATCH_SECONDS:
                now = now.after(self._verdicts, known)
            else:
                self._released_at = time.monotonic()
            before, self._verdicts = self._verdicts, now
            is_news |= before != self._verdicts
            if pending:
                self._loop.wake()
        if self._verdicts.is_node_at_fault and not before.is_node_at_fault:
            text = "every GPU of this node failed its test, so all are offered: look at the driver and its libraries"
            log.error("every GPU failed its test", extra=fields(count=len(known)))
            self._events.send(NODE_AT_FAULT, text, "Warning")
        if is_news:
            self._listener.validation_changed()
