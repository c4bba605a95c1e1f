"""Validation records: which devices were tested in this boot, with which driver, and with which result.

In: results. Out: the record of a device, if it still applies. Records are kept beside the faults in `state.db`. A
device that a claim had, or that an agent without tests offered in this boot, is recorded as one that has served, so
that it is not tested after an upgrade. A reboot, or another driver version, makes all records void. Before the records
of an earlier agent were read, none is written; if they were in a file that was damaged, every device is tested.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dra_driver.base.errors import DriverError
from dra_driver.node.health.faults import Subject, read_gpus
from dra_driver.node.health.stored_health import GPUS, HealthStore, record_among
from dra_driver.node.health.validation import INTERRUPTED, MEMORY, ValidationLevel, ValidationResult, ValidationVerdict
from dra_driver.node.health.validation_child import ChildEnd

DOCUMENT = "validation"
SERVED = "served"  # used instead of a verdict
BEGUN = "begun"  # whether an agent that makes tests has written the document
UNTESTED = "untested"
MAX_RECORDS = 4096


@dataclass(frozen=True, slots=True)
class ValidationRecord:
    """The record of one device. `verdict` is passed, failed or served; `at` is in seconds since 1970."""

    driver: str
    verdict: str
    reason: str = ""
    detail: str = ""
    at: float = 0.0

    @property
    def has_failed(self) -> bool:
        """Return whether the device failed its last test."""
        return self.verdict == ValidationVerdict.FAILED

    @property
    def is_of_any_driver(self) -> bool:
        """Return whether the device has served before the driver's version was known."""
        return self.verdict == SERVED and not self.driver


@dataclass(frozen=True, slots=True)
class UntestedDevice:
    """A device whose test could not run: the reason, how often it was tried, and when last (seconds since 1970)."""

    device: str
    driver: str
    reason: str
    detail: str
    tries: int
    at: float


class ValidationRecords:
    """The records of one node in this boot, by UUID. Not thread-safe: the caller holds a lock."""

    def __init__(self, store: HealthStore, boot_id: str, clock: Callable[[], float] = time.time) -> None:
        self._store, self._boot_id, self._clock = store, boot_id, clock
        self._records: dict[str, ValidationRecord] = {}
        self._untested: dict[str, UntestedDevice] = {}
        self._offered: frozenset[str] = frozenset()
        self._has_begun = False  # whether devices are tested in this boot; if not, each offered device counts as served
        self.is_loaded = False
        self.load()

    @property
    def is_empty(self) -> bool:
        """Whether no result is recorded, so that a later agent would lose nothing."""
        return not any(one.verdict != SERVED for one in self._records.values())

    def of(self, uuid: str, driver: str) -> ValidationRecord | None:
        """Return the record of a device under a driver."""
        known = self._records.get(uuid)
        if uuid in self._offered and (known is None or known.is_of_any_driver):
            return ValidationRecord(driver, SERVED)
        return known if known is not None and known.driver == driver else None

    def verdicts(self, uuids: Iterable[str], driver: str) -> Mapping[str, int]:
        """Return how many of these devices have each verdict, including those whose test could not run."""
        found: Counter[str] = Counter()
        for uuid in uuids:
            known = self.of(uuid, driver)
            if known is not None:
                found[known.verdict] += 1
            elif uuid in self._untested:
                found[ValidationVerdict.COULD_NOT_RUN] += 1
        return found

    def add_attempt(self, uuid: str, device: str, driver: str, result: ValidationResult) -> None:
        """Record that a test could not run."""
        before = self._untested.get(uuid)
        tries = before.tries + 1 if before is not None and before.driver == driver else 1
        self._untested[uuid] = UntestedDevice(device, driver, result.reason, result.detail, tries, self._clock())
        self._put({})

    def add_result(self, uuid: str, driver: str, result: ValidationResult) -> None:
        """Record a conclusive result."""
        self._put({uuid: ValidationRecord(driver, str(result.verdict), result.reason, result.detail, self._clock())})

    def add_served(self, uuids: Collection[str], driver: str) -> None:
        """Record that claims have these devices, unless a result is recorded for them."""
        self._put(
            {one: ValidationRecord(driver, SERVED, at=self._clock()) for one in uuids if not self.of(one, driver)}
        )

    def forget(self, uuid: str) -> None:
        """Forget the record of a device, so that it is tested again."""
        self._offered -= {uuid}
        self._records.pop(uuid, None)
        self._put({})

    def begin(self, driver: str) -> None:
        """Write the records, so that a later agent of this boot can see that devices are tested here.

        `driver` is "" while the hardware has not been read: devices that have served then count under any driver
        version, until `set_driver` sets it.
        """
        self._has_begun = True
        self._put(self._served_under(driver))

    def set_driver(self, driver: str) -> None:
        """Set the driver version of the devices that have served in this boot, once it is known. Idempotent."""
        more = self._served_under(driver) if driver and self._has_begun else {}
        if more:
            self._put(more)

    def _served_under(self, driver: str) -> dict[str, ValidationRecord]:
        known = {uuid: self._records.get(uuid) for uuid in self._offered}
        return {
            uuid: ValidationRecord(driver, SERVED) for uuid, one in known.items() if one is None or one.is_of_any_driver
        }

    def _put(self, more: Mapping[str, ValidationRecord]) -> None:
        for uuid in more:
            self._untested.pop(uuid, None)
        known = {**self._records, **more}
        self._records = dict(list(known.items())[-MAX_RECORDS:])
        records = {uuid: asdict(one) for uuid, one in self._records.items()}
        untested = {uuid: asdict(one) for uuid, one in list(self._untested.items())[-MAX_RECORDS:]}
        wire = {"boot": self._boot_id, BEGUN: self._has_begun, "records": records, UNTESTED: untested}
        if not self.is_loaded:
            return
        with suppress(DriverError):  # the next agent then tests again
            self._store.write({DOCUMENT: wire})

    def load(self) -> bool:
        """Read the records of an earlier agent, and return whether that was possible."""
        self.is_loaded = False
        try:
            documents = self._store.read()
        except DriverError:
            return False  # the health monitor reports that, and sets a damaged file aside
        self.is_loaded = True
        self._has_begun, self._records, self._untested = self._store.may_have_lost(DOCUMENT, documents), {}, {}
        wire = documents.get(DOCUMENT)
        if isinstance(wire, dict) and wire.get("boot") == self._boot_id:
            self._records = _records(wire.get("records"))
            self._untested = _untested(wire)
            self._has_begun = wire.get(BEGUN) is not False  # 0.2.0 did not write it
        if self._has_begun:
            self._offered = frozenset(uuid for uuid, one in self._records.items() if one.is_of_any_driver)
        else:
            self._offered = _offered(documents, self._boot_id)
        return True


def _records(wire: Any) -> dict[str, ValidationRecord]:
    found = {}
    for uuid, one in wire.items() if isinstance(wire, dict) else ():
        with suppress(KeyError, TypeError, ValueError):
            words = {name: str(one[name]) for name in ("driver", "verdict", "reason", "detail")}
            found[str(uuid)] = ValidationRecord(**words, at=float(one["at"]))
    return found


def untested_among(documents: Mapping[str, Any], boot_id: str) -> tuple[UntestedDevice, ...]:
    """Return the devices whose tests could not run in a boot, from the documents of a health store."""
    wire = documents.get(DOCUMENT)
    is_of_boot = isinstance(wire, dict) and wire.get("boot") == boot_id
    return tuple(_untested(wire).values()) if is_of_boot else ()


def _untested(wire: Any) -> dict[str, UntestedDevice]:
    found = {}
    rows = wire.get(UNTESTED)
    for uuid, one in rows.items() if isinstance(rows, dict) else ():
        with suppress(KeyError, TypeError, ValueError):
            device, driver, reason, detail = (str(one[name]) for name in ("device", "driver", "reason", "detail"))
            found[str(uuid)] = UntestedDevice(device, driver, reason, detail, int(one["tries"]), float(one["at"]))
    return found


def _offered(documents: Mapping[str, Any], boot_id: str) -> frozenset[str]:
    """Return the UUIDs of the GPUs and partitions that an agent without tests has found in this boot."""
    with suppress(ValueError):
        record = record_among(documents)
        if record is not None and record.boot == boot_id:
            gpus = read_gpus(documents.get(GPUS))
            return frozenset(uuid for gpu in gpus for uuid in (gpu.uuid, *(part.uuid for part in gpu.partitions)))
    return frozenset()


# Child result: the result of a test, derived from how its process ended.

PASSED, FAILED, COULD_NOT_RUN = ValidationVerdict
COMMAND_FAILED = 1  # the exit status by which an administrator's command reports that the device is bad
_FROM_OUTSIDE = frozenset([signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM])


def result_of(end: ChildEnd, level: ValidationLevel) -> ValidationResult:
    """Return the result of one of this driver's own test programs."""
    verdict, reason, detail = _outcome(end)
    figures = _figures(end.verdict) if verdict is PASSED else {}
    return ValidationResult(verdict, level, reason, detail, end.seconds, figures)


def result_of_command(end: ChildEnd) -> ValidationResult:
    """Return the result of an administrator's command: 0 passed, 1 failed, anything else could not run."""
    level = ValidationLevel.COMMAND
    if end.is_out_of_memory:
        return ValidationResult(COULD_NOT_RUN, level, MEMORY, "the command took too much memory", end.seconds)
    if end.is_late:
        return ValidationResult(COULD_NOT_RUN, level, "late", "the command did not end in time", end.seconds)
    words = end.output[-500:]
    if end.status == 0:
        return ValidationResult(PASSED, level, "", "", end.seconds)
    if end.status == COMMAND_FAILED:
        return ValidationResult(FAILED, level, "command", words or "the command failed without output", end.seconds)
    reason = INTERRUPTED if end.status == -signal.SIGKILL else "command"
    return ValidationResult(COULD_NOT_RUN, level, reason, f"{_ended(end.status)}: {words}", end.seconds)


def _outcome(end: ChildEnd) -> tuple[ValidationVerdict, str, str]:
    if end.is_out_of_memory:
        return COULD_NOT_RUN, MEMORY, f"the test took too much memory in step {end.step}"
    if end.is_late:
        return FAILED, "hang", f"step {end.step} did not end in time"
    if end.verdict is not None and end.status == 0:
        return _printed(end.verdict)
    if end.status is None or -end.status in _FROM_OUTSIDE:
        return COULD_NOT_RUN, INTERRUPTED, f"the test was ended in step {end.step}"
    if end.status < 0:
        return FAILED, "crash", f"the library crashed in step {end.step} ({signal.Signals(-end.status).name})"
    return COULD_NOT_RUN, "not-started", f"{_ended(end.status)}: {end.output[-500:]}"


def _printed(verdict: Mapping[str, Any]) -> tuple[ValidationVerdict, str, str]:
    try:
        return ValidationVerdict(verdict["verdict"]), str(verdict["reason"]), str(verdict["detail"])
    except (KeyError, ValueError):
        return COULD_NOT_RUN, "not-started", "the test printed something that is not a verdict"


def _figures(verdict: Mapping[str, Any] | None) -> Mapping[str, int]:
    figures = (verdict or {}).get("figures")
    found = figures.items() if isinstance(figures, dict) else ()
    return {str(name): number for name, number in found if isinstance(number, int)}


def _ended(status: int | None) -> str:
    return "it did not end" if status is None else f"exit status {status}"


# Manual results: the results of `dra-driver validate`, passed to the agent of the node.

FILE_NAME = "validation-results"
MAX_BYTES = 1 << 20


class ResultsFile:
    """The results that the agent of one node has not taken yet."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def add(self, uuid: str, result: ValidationResult) -> bool:
        """Add a conclusive result; return whether it was written."""
        line = {"uuid": uuid, "verdict": result.verdict, "level": int(result.level), "reason": result.reason}
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(fd, (json.dumps({**line, "detail": result.detail[:500]}) + "\n").encode())
            finally:
                os.close(fd)
        except OSError:
            return False
        return True

    def take(self) -> dict[str, ValidationResult]:
        """Remove the file, and return the newest result of each device by UUID."""
        taken = self._path.with_name(f"{FILE_NAME}.taken")
        try:
            os.replace(self._path, taken)  # noqa: PTH105 - faster, as this is called every second
            with taken.open("rb") as file:
                text = file.read(MAX_BYTES)
            taken.unlink()
        except OSError:
            return {}
        return dict(_results(text))


def _results(text: bytes) -> Iterator[tuple[str, ValidationResult]]:
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            wire = json.loads(line)
            level, verdict = ValidationLevel(wire["level"]), ValidationVerdict(wire["verdict"])
            yield str(wire["uuid"]), ValidationResult(verdict, level, str(wire["reason"]), str(wire["detail"]))


# Verdicts of a node: what follows from the results of all its devices together.

GPUS_LEAST = 2


@dataclass(frozen=True, slots=True)
class NodeVerdicts:
    """The verdicts. `withheld`: devices not tested yet; `failed`: failed devices with the reasons.

    `is_node_at_fault`: all GPUs of the node failed.
    """

    withheld: frozenset[Subject] = frozenset()
    failed: Mapping[Subject, str] = field(default_factory=dict)
    is_node_at_fault: bool = False

    def after(self, before: NodeVerdicts, known: Collection[Subject]) -> NodeVerdicts:
        """Return these verdicts, in which the devices that were held back before are still held back."""
        kept = before.withheld.intersection(known)
        failed = {subject: reason for subject, reason in self.failed.items() if subject not in kept}
        return replace(self, withheld=self.withheld | kept, failed=failed)


def verdicts_of_node(known: Mapping[Subject, ValidationRecord | None], pending: Collection[Subject]) -> NodeVerdicts:
    """Return what follows from the records of all devices of a node; `pending` are those that will be tested."""
    waiting = frozenset(pending)
    failed = {subject: one.reason for subject, one in known.items() if one is not None and one.has_failed}
    gpus = {subject.gpu for subject in known}
    good = {subject.gpu for subject in known if subject not in failed and subject not in waiting}
    if failed and not good and len(gpus) >= GPUS_LEAST:
        if waiting:
            return NodeVerdicts(waiting | failed.keys())
        return NodeVerdicts(is_node_at_fault=True)
    return NodeVerdicts(waiting, failed)
