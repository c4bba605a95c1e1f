"""Record: what has been observed on this node's GPUs, and the faults that follow from it.

Pure apart from its own state. In: evidence, which may arrive from different sources in any order. Out: faults. An Xid
that two sources report is counted once, because only the source with the larger count is used. What the driver itself
reports about recovery decides; the table of Xids is used only while the driver has reported nothing since the Xid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dra_driver.hardware.evidence import BusState, HealthReport, Source, Vitals, XidReport
from dra_driver.hardware.facts import GpuFacts
from dra_driver.node.health.faults import STICKY, Fault, FaultKey, Subject
from dra_driver.node.health.xids import (
    FALLEN_OFF_BUS,
    EarlierReadings,
    FaultTrack,
    Indication,
    XidClass,
    indications_of,
    row_of,
)

_KEYS_OF_CLASS = {
    XidClass.RESET: FaultKey.NEEDS_RESET,
    XidClass.REBOOT: FaultKey.NEEDS_REBOOT,
    XidClass.LINK: FaultKey.NVLINK,
    XidClass.SUPPORT: FaultKey.NEEDS_ATTENTION,
}
MAX_XIDS = 4096  # limit on different Xids of different subjects; no real machine has so many


@dataclass(frozen=True, slots=True)
class XidHistory:
    """One Xid of one subject: when it was first and last reported, and how often by each source."""

    first: float
    last: float
    counts: tuple[tuple[Source, int, float], ...] = ()  # source, number of reports, time of the newest report

    @property
    def count(self) -> int:
        """How often the Xid occurred, whichever sources reported it."""
        return max((count for _, count, _ in self.counts), default=0)

    def with_report(self, report: XidReport) -> XidHistory:
        """Return the history with one more report. A report that its source has made before changes nothing."""
        known = {source: (count, newest) for source, count, newest in self.counts}
        count, newest = known.get(report.source, (0, float("-inf")))
        if report.at <= newest:
            return self
        known[report.source] = (count + 1, max(newest, report.at))
        counts = tuple((source, *known[source]) for source in sorted(known))
        return XidHistory(min(self.first, report.at), max(self.last, report.at), counts)

    def shifted(self, seconds: float) -> XidHistory:
        """Return the history with other times."""
        counts = tuple((source, count, newest + seconds) for source, count, newest in self.counts)
        return XidHistory(self.first + seconds, self.last + seconds, counts)


@dataclass(slots=True)
class GpuState:
    """What the newest readings of one GPU showed, in addition to its tracks."""

    action: int | None = None
    action_at: float = float("-inf")
    links: tuple[bool, ...] = ()
    replays: tuple[float, int] | None = None

    def shifted(self, seconds: float) -> GpuState:
        """Return the state with other times."""
        replays = (self.replays[0] + seconds, self.replays[1]) if self.replays else None
        return GpuState(self.action, self.action_at + seconds, self.links, replays)


@dataclass(slots=True)
class HealthRecord:
    """Everything that is remembered in one boot. Not thread-safe."""

    boot: str = ""
    xids: dict[tuple[Subject, int], XidHistory] = field(default_factory=dict)
    tracks: dict[tuple[Subject, FaultKey], FaultTrack] = field(default_factory=dict)
    gpus: dict[str, GpuState] = field(default_factory=dict)
    log_position: int = -1

    def add_report(self, report: HealthReport, known: Mapping[str, GpuFacts], now: float) -> None:
        """Add a vendor's report. `known` has the facts of the node's GPUs by PCI address."""
        if report.is_driver_new:
            self._forget_before_driver()
        for xid in sorted(report.xids, key=lambda one: (one.at, one.gpu, one.code, one.source)):
            if xid.gpu in known:
                self._add_xid(xid, known[xid.gpu])
        for reading in report.readings:
            if reading.gpu in known and reading.uuid in {"", known[reading.gpu].uuid}:
                self._add_reading(reading)
        for gpu, state in report.bus:
            if gpu in known and state in {BusState.GONE, BusState.DEAD}:
                self.observe(Subject(gpu), Indication(FaultKey.GPU_LOST, is_bad=True), now)
        if report.log_position >= 0:
            self.log_position = report.log_position

    def observe(self, subject: Subject, indication: Indication, at: float) -> None:
        """Add one indication."""
        track = self.tracks.get((subject, indication.key), FaultTrack(indication.key)).after(indication, at)
        if track.is_idle:
            self.tracks.pop((subject, indication.key), None)
        else:
            self.tracks[subject, indication.key] = track

    def forget(self, gpus: Iterable[str]) -> None:
        """Forget everything about GPUs that an administrator declared gone or that are absent on purpose."""
        gone = set(gpus)
        self.xids = {key: one for key, one in self.xids.items() if key[0].gpu not in gone}
        self.tracks = {key: one for key, one in self.tracks.items() if key[0].gpu not in gone}
        self.gpus = {gpu: state for gpu, state in self.gpus.items() if gpu not in gone}

    def forget_xids(self, gpus: Iterable[str]) -> None:
        """Forget the Xids of GPUs that were reset."""
        cured = set(gpus)
        self.xids = {key: one for key, one in self.xids.items() if key[0].gpu not in cured}

    def in_boot(self, boot: str) -> HealthRecord:
        """Return the record for a boot: this one, or after a reboot a new one with the faults that a reboot leaves."""
        if boot == self.boot:
            return self
        sticky = {key: track for key, track in self.tracks.items() if key[1] in STICKY}
        return HealthRecord(boot, tracks=sticky)

    def shifted(self, seconds: float) -> HealthRecord:
        """Return the record with other times, as those of another clock."""
        return HealthRecord(
            self.boot,
            {key: seen.shifted(seconds) for key, seen in self.xids.items()},
            {key: track.shifted(seconds) for key, track in self.tracks.items()},
            {gpu: state.shifted(seconds) for gpu, state in self.gpus.items()},
            self.log_position,
        )

    @property
    def has_suspicion(self) -> bool:
        """Whether one more bad reading would raise a fault, so that another reading should follow soon."""
        return any(track.is_suspect for track in self.tracks.values())

    @property
    def has_history(self) -> bool:
        """Whether the record has facts that later readings can't show, such as starts and counts.

        Harmless Xids are not considered.
        """
        return bool(self.tracks) or any(not row_of(code).kind.is_harmless for _, code in self.xids)

    def faults(self, now: float, ignored_xids: frozenset[int] = frozenset()) -> tuple[Fault, ...]:
        """Return the current faults, the most important first, at most one for each subject and key."""
        found: dict[tuple[Subject, FaultKey], Fault] = {}
        for fault in (*self._of_tracks(now), *self._of_xids(ignored_xids)):
            slot = (fault.subject, fault.key)
            found[slot] = _merged(found[slot], fault) if slot in found else fault
        return tuple(sorted(found.values(), key=_importance))

    def _add_xid(self, xid: XidReport, gpu: GpuFacts) -> None:
        slot = (subject_of(xid, gpu), xid.code)
        if slot not in self.xids and len(self.xids) >= MAX_XIDS:
            return
        known = self.xids.get(slot, XidHistory(xid.at, xid.at))
        self.xids[slot] = known.with_report(xid)
        if xid.code == FALLEN_OFF_BUS and self.xids[slot] is not known:
            self.observe(Subject(xid.gpu), Indication(FaultKey.GPU_LOST, is_bad=True), xid.at)

    def _add_reading(self, reading: Vitals) -> None:
        state = self.gpus.setdefault(reading.gpu, GpuState())
        for indication in indications_of(reading, EarlierReadings(state.links, state.replays)):
            self.observe(Subject(reading.gpu), indication, reading.at)
        if reading.is_lost:
            state.action = None
            return
        if reading.at >= state.action_at:
            state.action, state.action_at = reading.recovery_action, reading.at
        state.links = _either(state.links, reading.links)
        if reading.pcie_replays is not None:
            state.replays = (reading.at, reading.pcie_replays)
        self._drop_settled(reading.gpu)

    def _drop_settled(self, gpu: str) -> None:
        """Forget the Xids after which the driver has reported that no action is needed."""
        state = self.gpus[gpu]
        if state.action == 0:
            self.xids = {
                (subject, code): one
                for (subject, code), one in self.xids.items()
                if subject.gpu != gpu or one.last > state.action_at or row_of(code).kind.is_harmless
            }

    def _forget_before_driver(self) -> None:
        self.xids.clear()
        self.tracks = {key: track for key, track in self.tracks.items() if key[1] in STICKY}
        self.gpus.clear()

    def _of_tracks(self, now: float) -> Iterator[Fault]:
        for (subject, key), track in self.tracks.items():
            if track.is_raised:
                is_flapping = track.is_flapping(now)
                times = track.since, track.last_bad
                yield Fault(key, subject, track.value, *times, track.count, self.boot, is_flapping, track.is_mild)

    def _of_xids(self, ignored: frozenset[int]) -> Iterator[Fault]:
        for (subject, code), seen in self.xids.items():
            kind = row_of(code).kind
            state = self.gpus.get(subject.gpu, GpuState())
            has_report = state.action is not None and state.action_at >= seen.last
            if kind.is_harmless or code in ignored or (has_report and state.action == 0):
                continue
            yield Fault(FaultKey.XID, subject, str(code), seen.first, seen.last, seen.count, self.boot)
            if not has_report:
                yield Fault(_KEYS_OF_CLASS[kind], subject, f"xid-{code}", seen.first, seen.last, seen.count, self.boot)


def subject_of(xid: XidReport, gpu: GpuFacts) -> Subject:
    """Return the subject of an Xid: the partition, if the driver names one that exists, otherwise the GPU."""
    named = next((p for p in gpu.partitions if p.gi_id == xid.gi_id), None) if xid.gi_id is not None else None
    return Subject(xid.gpu, (named.gi_profile_id, named.start) if named else None)


def _importance(fault: Fault) -> tuple[int, str, tuple[int, ...]]:
    """Return the sort key of a fault: the most important key of a node comes first, whichever GPU has it."""
    return fault.key.rank, fault.subject.gpu, fault.subject.partition or ()


def _merged(one: Fault, other: Fault) -> Fault:
    """Return two faults of one key as one fault with the worse value, the earlier start, and both counts added."""
    worse = min(one, other, key=_badness)
    return replace(
        worse,
        since=min(one.since, other.since),
        last_seen=max(one.last_seen, other.last_seen),
        count=one.count + other.count,
        is_flapping=one.is_flapping or other.is_flapping,
        is_mild=one.is_mild and other.is_mild,
    )


def _badness(fault: Fault) -> tuple[int, int, str]:
    """Return the sort key of a value: the worst comes first, and a value of the driver's own before one of an Xid."""
    code = fault.value.removeprefix("xid-")
    if not code.isdigit():
        return (0, 0, fault.value)
    return (1, -row_of(int(code)).kind.rank * 10_000 + int(code), "")


def _either(before: tuple[bool, ...], now: tuple[bool, ...]) -> tuple[bool, ...]:
    width = max(len(before), len(now))
    one, other = (links + (False,) * (width - len(links)) for links in (before, now))
    return tuple(a or b for a, b in zip(one, other, strict=True))
