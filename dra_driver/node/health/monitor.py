"""Monitor: the thread that turns observations into faults, and stores them.

In: a vendor's reports, the facts of every scan of the hardware, cordons. Out: the current faults, as a value that any
thread may read, and a call whenever they change. A fault that takes a device out of use is written to disk before it is
reported, so that it has the same start after a restart; other changes are written within ten seconds.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dra_driver.base.errors import InputError
from dra_driver.base.machine import PeopleTime
from dra_driver.base.names import normal_pci_address
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.hardware.evidence import BusState, HealthReport, XidReport
from dra_driver.hardware.facts import Facts, GpuFacts, Problem
from dra_driver.hardware.port import HealthReporter
from dra_driver.node.health.cordons import Cordon, CordonFile, KnownCordons
from dra_driver.node.health.fault_record import HealthRecord, subject_of
from dra_driver.node.health.faults import Fault, FaultKey, HealthPolicy, KnownGpus, Subject
from dra_driver.node.health.stored_health import FreshLook, HealthStore, SavePace, StoredHealth, documents_of, joined
from dra_driver.node.health.xids import Indication, XidCounts, is_application_error

# Forgetting

FILE_NAME = "health-forget"
MAX_BYTES = 1 << 16


class ForgetFile:
    """The requests of one node."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def ask(self, gpu: str) -> None:
        """Ask the agent to forget a GPU, by PCI address. Raises: InputError("input.forget")."""
        try:
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{gpu}\n")
        except OSError as error:
            hint = "is the agent's data folder on this node, and may you write there?"
            raise InputError("forget", f"{self._path} can't be written: {error.strerror}", hint=hint) from error

    def take(self) -> frozenset[str]:
        """Remove the requests, and return the GPUs to be forgotten.

        Lines that are not PCI addresses are ignored.
        """
        taken = self._path.with_name(f"{FILE_NAME}.taken")
        found = set()
        try:
            os.replace(self._path, taken)  # noqa: PTH105 - faster, as this is called every second
            with taken.open("rb") as file:
                lines = file.read(MAX_BYTES).decode("ascii", "replace").split()
            taken.unlink()
        except OSError:
            return frozenset()
        for line in lines:
            with suppress(ValueError):
                found.add(normal_pci_address(line))
        return frozenset(found)


# Own indications: faults that this driver itself finds, such as a missing GPU, a failed test or a silent library.

SILENT_SECONDS = 30.0  # a GPU counts as unmonitored after this time without an answer of the library


def record_missing(record: HealthRecord, missing: Mapping[str, bool], now: float) -> None:
    """Record which GPUs the last scan of the hardware did not find. A scan happens at least once a minute.

    `missing` maps each missing GPU to whether the reason is a call of the library that does not return.
    """
    for (subject, key), track in list(record.tracks.items()):
        if key is FaultKey.NOT_ANSWERING and track.is_raised and not missing.get(subject.gpu):
            record.observe(subject, Indication(key, is_bad=False), now)
    for gpu, is_hanging in missing.items():
        key = FaultKey.NOT_ANSWERING if is_hanging else FaultKey.GPU_LOST
        known = record.tracks.get((Subject(gpu), key))
        if known is None or not known.is_raised or known.good:
            record.observe(Subject(gpu), Indication(key, is_bad=True), now)


def record_test_results(record: HealthRecord, failed: Mapping[Subject, str], now: float) -> None:
    """Record the devices that failed a test, with the reasons."""
    known = {subject: one for (subject, key), one in record.tracks.items() if key is FaultKey.UNVALIDATED}
    for subject, track in known.items():
        if track.is_raised and subject not in failed:
            record.observe(subject, Indication(FaultKey.UNVALIDATED, is_bad=False), now)
    for subject, reason in failed.items():
        before = known.get(subject)
        if before is None or not before.is_raised or before.good or before.value != reason:
            record.observe(subject, Indication(FaultKey.UNVALIDATED, is_bad=True, value=reason), now)


def record_silence(record: HealthRecord, report: HealthReport, known: Iterable[str], now: float) -> None:
    """Record the GPUs that are not monitored because the library is silent, and those that were read again."""
    is_silent = report.silent_s >= SILENT_SECONDS
    answered = {reading.gpu for reading in report.readings}
    for gpu in known:
        if is_silent or gpu in answered:
            record.observe(Subject(gpu), Indication(FaultKey.UNMONITORED, is_silent), now)


log = logging.getLogger(__name__)

TURN_SECONDS = 1.0  # how often files are checked; the vendor's events wake the monitor at once
BUS_SECONDS = 10.0
REMEDIATED_SECONDS = 60.0  # how long a GPU is read as often as after a first bad reading once it was remediated
RECHECK_SECONDS = 2.0  # pause after a first bad reading, so that a second one confirms it soon
PATIENCE_SECONDS = 1.5  # how long to wait for readings that are newer than an Xid


@dataclass(frozen=True, slots=True)
class HealthNow:
    """What is wrong now. `cordons` are those in force; `xids` counts Xids by code since the agent started.

    Times of faults are those that people read. `read` is when each GPU was read last, in boot time; the faults that
    were found then are among `faults`.
    """

    faults: tuple[Fault, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    problems: tuple[Problem, ...] = ()
    xids: Mapping[int, int] = field(default_factory=dict)
    read: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HealthFiles:
    """The files about a node's health: the store of the record, and what an administrator took out or declared gone."""

    store: HealthStore
    cordons: CordonFile
    forget: ForgetFile

    @classmethod
    def of(cls, folder: Path) -> HealthFiles:
        """Return the files in the agent's folder."""
        return cls(HealthStore(folder), CordonFile(folder), ForgetFile(folder))


class HealthMonitor:
    """Watches one node's GPUs while it has the node's role. Any thread may call any method.

    Args:
        reporter: the vendor.
        files: the files about the node's health.
        policy: what each fault means for the scheduler.
        boot_id: this boot's id.
        changed: called by the monitor's thread when faults or cordons have changed.
        application_error: called by that thread with an Xid that an application caused, once in each turn.
        failed_tests: called in each turn with the faults; returns the devices that failed a test, with the reasons, or
            None while that is not known.
        people: the boot time, or another clock that nobody sets, and the time that people read.
    """

    def __init__(
        self,
        reporter: HealthReporter,
        files: HealthFiles,
        *,
        policy: HealthPolicy,
        boot_id: str,
        changed: Callable[[], None],
        application_error: Callable[[Subject, XidReport], None] = lambda *_: None,
        failed_tests: Callable[[Iterable[Fault]], Mapping[Subject, str] | None] = lambda _: {},
        people: PeopleTime | None = None,
    ) -> None:
        self._people = people = people or PeopleTime()
        self._reporter, self._forget_file, self._policy = reporter, files.forget, policy
        self._store, self._stored, self._look = files.store, StoredHealth(files.store, boot_id, people), FreshLook()
        self._cordons, self._started_at, self._clock = KnownCordons(files.cordons), people.clock(), people.clock
        self._changed, self._failed_tests, self._application_error = changed, failed_tests, application_error
        self._mutex = threading.Lock()  # guards the known GPUs, which the scanner's thread completes
        self._known = KnownGpus(reporter.bus_states)
        self._record = HealthRecord(boot_id)
        self._xid_counts = XidCounts()
        self._loop = Loop("health", self._turn, failure="health monitor failed")
        self._bus_at = self._hurried_until = float("-inf")
        self._pace = SavePace()
        self._has_turned = self._has_told = self._is_complete = False  # complete: the last scan has the missing GPUs
        self._has_asked = False  # whether the vendor was asked about the GPUs since the node's role was gained
        self._remediated: set[str] = set()  # GPUs whose earlier errors are to be forgotten; guarded by the mutex
        self._problems: tuple[Problem, ...] = ()
        self._meaning: Hashable = None
        self.turned_at = 0.0  # when the last turn was completed, in boot time; 0 before the first
        self.now = HealthNow()
        self._load(has_role=False)  # so that a GPU that was lost before a restart is missed from the first scan on

    def start(self) -> None:
        """Load the record from disk, report its faults, and start to watch."""
        self._has_asked = False
        self._load(has_role=True)
        self._cordons.refresh()
        self._conclude(self._clock())
        self._reporter.watch_health(self._loop.wake, log_position=self._record.log_position)
        self._loop.start()

    @property
    def is_needed(self) -> bool:
        """Whether memory or disk holds something that a newly started agent would not find out again."""
        return bool(self.now.faults) or self._stored.holds_history()

    @property
    def is_loaded(self) -> bool:
        """Whether what was known before could be read; when that changes, the hardware has to be assessed again."""
        return self._stored.is_loaded

    @property
    def is_known(self) -> bool:
        """Whether it is known which GPUs must not be offered: what was known before, and what a look has shown.

        The agent before may have known of a fault that it could not write to disk.
        """
        is_complete = self._is_complete and self._has_asked and self._look.is_over
        return self.is_loaded and is_complete and self._cordons.last is not None

    def stop(self) -> None:
        """Stop watching."""
        self._loop.stop(PATIENCE_SECONDS + 1)
        self._reporter.end_health()

    def forget_errors(self, gpu: str) -> None:
        """Forget the Xids that were reported for a GPU before it was reset, and read its health again soon."""
        with self._mutex:
            self._remediated.add(gpu)
        self._loop.wake()

    def read_at(self, gpu: str) -> float:
        """Return when a GPU's health was read last, in boot time; minus infinity if it was not."""
        return self.now.read.get(gpu, float("-inf"))

    def completed(self, facts: Facts) -> Facts:
        """Return the facts with the missing GPUs added as they were last seen, and marked as lost."""
        with self._mutex:
            before = self._known.missing
            is_first = not self._known.by_address
            whole = self._known.completed(facts)
            self._is_complete = self.is_loaded
            is_changed = is_first or self._known.missing != before
        if is_changed:
            self._loop.wake()
        return whole

    def _turn(self) -> float:
        now = self._clock()
        if not self.is_loaded:
            self._load(has_role=True)
        self._has_turned = True
        self._drop_forgotten()
        self._drop_remediated(now)
        with self._mutex:
            has_asked = bool(self._known.by_address) or self._is_complete  # a scan may have shown that there is none
        report = self._report(now)
        with self._mutex:
            known, missing = self._known.by_address, self._known.missing
        self._record.add_report(report, known, now)
        record_missing(self._record, missing, now)
        record_silence(self._record, report, known, now)
        if (failed := self._failed_tests(self.now.faults)) is not None:
            record_test_results(self._record, failed, now)
        self._xid_counts.count(xid for xid in report.xids if xid.gpu in known)
        self._report_applications(report, known)
        self._cordons.refresh()
        self._look.follow(self._record, known, now)
        self._update_problems(report)
        self._conclude(now, has_asked=has_asked)
        self.turned_at = now
        return RECHECK_SECONDS if self._is_hurried(now) else TURN_SECONDS

    def _report_applications(self, report: HealthReport, known: Mapping[str, GpuFacts]) -> None:
        """Report the errors of applications since the start; the previous instance has reported the older ones."""
        new = {}
        for xid in report.xids:
            is_new = xid.gpu in known and xid.at >= self._started_at
            if is_new and is_application_error(xid.code):
                new[subject_of(xid, known[xid.gpu])] = xid
        for subject, xid in new.items():
            self._application_error(subject, replace(xid, at=xid.at + self._people.offset))

    def _report(self, now: float) -> HealthReport:
        """Return what the vendor observed; every `BUS_SECONDS` the bus is checked too.

        Before the first scan of the hardware the vendor is not asked, because a report could not be matched to GPUs.
        """
        with self._mutex:
            if not self._known.by_address:
                return HealthReport()
        report = self._reporter.health(is_urgent=self._is_hurried(now), patience_s=PATIENCE_SECONDS)
        if 0 <= now - self._bus_at < BUS_SECONDS:
            return report
        self._bus_at = now
        with self._mutex:
            states = self._reporter.bus_states(tuple(self._known.by_address))
            moved = [gpu for gpu, state in states.items() if state is BusState.ELSEWHERE]
        self._record.forget(moved)
        return replace(report, bus=tuple(states.items()))

    def _update_problems(self, report: HealthReport) -> None:
        """Record the sources that can't be read, and log those that could be read before."""
        stored = ("health.store", self._stored.problem)
        found = (("health.source", report.problem), ("health.cordons", self._cordons.problem), stored)
        problems = tuple(Problem(code, "node", text) for code, text in found if text)
        if report.problem and report.problem not in {one.message for one in self._problems}:
            log.warning("a source of health information can't be read", extra=fields(err=report.problem))
        self._problems = problems

    def _conclude(self, now: float, *, has_asked: bool = False) -> None:
        """Save what has changed, and then report it. A save that fails is tried again later."""
        offset = self._people.offset
        found = self._record.faults(now, self._policy.ignored_xids)
        faults = tuple(replace(one, since=one.since + offset, last_seen=one.last_seen + offset) for one in found)
        cordons = self._cordons.in_force(now + offset)
        verdicts = self._policy.verdicts(faults, len(self._known.by_address), now + offset)
        before = self.now
        lasting = tuple(replace(fault, last_seen=0.0, count=0) for fault in faults)
        meaning = (lasting, cordons, tuple((one.fault.key, one.effect) for one in verdicts))
        is_changed = meaning != self._meaning
        out = frozenset((one.fault.subject, one.fault.key) for one in verdicts if one.effect.is_blocking)
        content = (meaning, self._known.revision, self._look.is_over)
        if self._pace.is_due(now, content, out) and self._save():
            self._pace.saved(now, content, out)
        self._meaning = meaning
        read = {gpu: state.action_at for gpu, state in self._record.gpus.items()}
        self.now = HealthNow(faults, cordons, self._problems, self._xid_counts.counts, read)
        self._has_asked |= has_asked  # only now, because other threads then take these faults for all
        if is_changed:
            self._log(before.faults, faults)
        # What holds the devices back waits for the first turn after which everything is known, faults or not.
        is_known = self.is_known
        if is_changed or not (is_known and self._has_told):
            self._has_told = is_known
            self._changed()

    def _save(self) -> bool:
        with self._mutex:
            is_lost, offset = not self._look.is_over, self._people.offset
            documents = documents_of(self._record, offset, self._known, is_lost=is_lost)
        return self._stored.save(documents)

    def _load(self, *, has_role: bool) -> None:
        """Read what was known before, unless that is impossible now. What was observed meanwhile is added to it."""
        before = self._stored.load(has_role=has_role)
        if before is None:
            return
        self._record = joined(before.record, self._record) if self._has_turned else before.record
        if before.is_lost:
            self._look.begin(self._clock())
        with self._mutex:
            self._known.restore(before.gpus)

    def _drop_forgotten(self) -> None:
        """Forget the GPUs that an administrator declared gone."""
        gone = self._forget_file.take()
        if gone:
            log.info("GPUs forgotten", extra=fields(devices=len(gone)))
            with self._mutex:
                self._known.forget(gone)
            self._record.forget(gone)

    def _drop_remediated(self, now: float) -> None:
        with self._mutex:
            remediated, self._remediated = self._remediated, set()
        if remediated:
            self._record.forget_xids(remediated)
            self._hurried_until = now + REMEDIATED_SECONDS

    def _is_hurried(self, now: float) -> bool:
        return self._record.has_suspicion or now < self._hurried_until

    def _log(self, before: tuple[Fault, ...], now: tuple[Fault, ...]) -> None:
        known = {(one.subject, one.key) for one in before}
        current = {(one.subject, one.key) for one in now}
        for fault in now:
            if (fault.subject, fault.key) not in known:
                log.warning("fault", extra=fields(device=fault.subject.gpu, problem=fault.sentence))
        for fault in before:
            if (fault.subject, fault.key) not in current:
                log.info("fault over", extra=fields(device=fault.subject.gpu, problem=fault.sentence))
