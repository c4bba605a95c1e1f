"""StoredHealth: what the health store holds for the monitor, read once it can be read, and written after that.

In: the store. Out: the record and the known GPUs of before, or None while they can't be read. If they are
lost with a damaged store, that is known until every GPU was looked at again, also after another restart.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dra_driver.base.errors import LedgerError
from dra_driver.base.machine import PeopleTime
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.evidence import Source
from dra_driver.hardware.facts import GpuFacts
from dra_driver.node.health.fault_record import GpuState, HealthRecord, XidHistory
from dra_driver.node.health.faults import FaultKey, KnownGpus, Subject, read_gpus
from dra_driver.node.health.xids import FaultTrack
from dra_driver.node.ledger.state import Part, StatePart, is_damaged

# Health store: the part of the state in which faults are kept, so that each is still known after a restart.

RECORD, GPUS, GRANTS, UNPROVEN = "record", "gpus", "grants", "unproven"
_PART = Part("health", "health-damaged", {"documents": "name TEXT PRIMARY KEY, body TEXT NOT NULL"}, older="health.db")
_PUT = (
    "INSERT INTO documents VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body "
    "WHERE body <> excluded.body"
)


class HealthStore:
    """The documents of one node."""

    def __init__(self, folder: Path) -> None:
        self._part = StatePart(folder, _PART)

    def read(self) -> Mapping[str, Any]:
        """Return all documents by name, or none if there is no file. Raises: LedgerError."""

        def read(connection: sqlite3.Connection) -> dict[str, Any]:
            rows = connection.execute("SELECT name, body FROM documents").fetchall()
            return {str(name): json.loads(body) for name, body in rows}

        return self._part.read(read, {})

    def write(self, documents: Mapping[str, Any]) -> None:
        """Replace these documents durably, either all of them or none. Raises: LedgerError.

        A damaged file is set aside; the next write begins a new one.
        """
        rows = [(name, json.dumps(body, separators=(",", ":"))) for name, body in documents.items()]
        try:
            self._part.write(lambda connection: connection.executemany(_PUT, rows))
        except LedgerError as error:
            if is_damaged(error):
                self.set_aside()
            raise

    def may_have_lost(self, name: str, documents: Mapping[str, Any]) -> bool:
        """Return whether a document that is not among these may have been in a damaged file."""
        return name not in documents and self._part.is_lost()

    def set_aside(self) -> None:
        """Set a damaged file aside. Raises: LedgerError if that is impossible."""
        self._part.set_aside()

    def written_at(self) -> float | None:
        """Return when the store was written last, in seconds since 1970; None if it never was."""
        return self._part.written_at()


# The record as JSON values, in which form it is kept on disk.


def record_wire(record: HealthRecord, offset: float = 0.0) -> dict[str, Any]:
    """Return a record in boot time as JSON values, whose times are what people read at this offset."""
    record = record.shifted(offset)
    return {
        "boot": record.boot,
        "offset": offset,
        "logPosition": record.log_position,
        "sightings": [
            [_subject_wire(subject), code, seen.first, seen.last, [list(one) for one in seen.counts]]
            for (subject, code), seen in record.xids.items()
        ],
        "tracks": [[_subject_wire(subject), track.to_wire()] for (subject, _), track in record.tracks.items()],
        "gpus": {gpu: asdict(state) for gpu, state in record.gpus.items()},
    }


def read_record(wire: Mapping[str, Any]) -> HealthRecord:
    """Return what `record_wire` described. Raises: ValueError for anything else."""
    try:
        tracks = {
            (_subject(subject), FaultKey(track["key"])): FaultTrack.from_wire(track)
            for subject, track in wire["tracks"]
        }
        xids = {
            (_subject(subject), int(code)): XidHistory(
                float(first), float(last), tuple((Source(s), int(n), float(at)) for s, n, at in counts)
            )
            for subject, code, first, last, counts in wire["sightings"]
        }
        gpus = {str(gpu): _state(state) for gpu, state in wire["gpus"].items()}
        return HealthRecord(str(wire["boot"]), xids, tracks, gpus, int(wire["logPosition"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record of health: {error!r}") from error


def record_in_boot_time(documents: Mapping[str, Any], boot: str, offset: float) -> HealthRecord:
    """Return the record among the documents in the time of a boot, with what is still true in it. Raises: ValueError.

    In the same boot, the times are as they were when they were written, although the clock was set since.
    """
    record = record_among(documents) or HealthRecord(boot)
    before = documents[RECORD].get("offset") if record.boot == boot and RECORD in documents else None
    return record.shifted(-(float(before) if isinstance(before, int | float) else offset)).in_boot(boot)


def record_among(documents: Mapping[str, object]) -> HealthRecord | None:
    """Return the record among the documents of the store, or None if there is none. Raises: ValueError."""
    wire = documents.get(RECORD)
    return read_record(wire) if isinstance(wire, dict) else None


def _subject_wire(subject: Subject) -> list[Any]:
    return [subject.gpu, list(subject.partition) if subject.partition else None]


def _subject(wire: Any) -> Subject:
    gpu, partition = wire
    return Subject(str(gpu), (int(partition[0]), int(partition[1])) if partition else None)


def _state(wire: Mapping[str, Any]) -> GpuState:
    replays = wire["replays"]
    return GpuState(
        action=wire["action"],
        action_at=float(wire["action_at"]),
        links=tuple(map(bool, wire["links"])),
        replays=(float(replays[0]), int(replays[1])) if replays else None,
    )


log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
CHANGE_SECONDS = 10.0  # the least pause between saves of changes that take no GPU out of use
SAVE_SECONDS = 60.0  # pause between saves while nothing changes but readings


@dataclass(frozen=True, slots=True)
class HealthBefore:
    """What was known before; `is_lost` if some of that was in a damaged file."""

    record: HealthRecord
    gpus: tuple[GpuFacts, ...] = ()
    is_lost: bool = False


class StoredHealth:
    """The monitor's documents in the store of one node."""

    def __init__(self, store: HealthStore, boot_id: str, time: PeopleTime) -> None:
        self._store, self._boot_id, self._time = store, boot_id, time
        self.is_loaded = False
        self.problem = ""  # why the store can't be read

    def load(self, *, has_role: bool) -> HealthBefore | None:
        """Return what was known before, None while that can't be read. With the role, a damaged store is set aside."""
        try:  # while it is read, a scan still goes by what was read before
            before = self._read(has_role=has_role)
        except (LedgerError, ValueError) as error:
            self.is_loaded = False
            if str(error) != self.problem:
                self.problem = str(error)
                code = error.code if isinstance(error, LedgerError) else "ledger.health-damaged"
                log.error("health store can't be read", extra=fields(code=code, err=str(error)))  # noqa: TRY400
            return None
        self.is_loaded, self.problem = True, ""
        return before

    def _read(self, *, has_role: bool) -> HealthBefore:
        try:
            return self._before(self._store.read())
        except (LedgerError, ValueError) as error:
            if not has_role or (isinstance(error, LedgerError) and not is_damaged(error)):
                raise
        self._store.set_aside()
        return replace(self._before(self._store.read()), is_lost=True)

    def _before(self, documents: Mapping[str, Any]) -> HealthBefore:
        is_of_boot = (record_among(documents) or HealthRecord()).boot == self._boot_id
        record = record_in_boot_time(documents, self._boot_id, self._time.offset)
        gpus = read_gpus(documents.get(GPUS)) if is_of_boot else ()
        is_lost = documents.get(UNPROVEN) is True or self._store.may_have_lost(RECORD, documents)
        return HealthBefore(record, gpus, is_lost)

    def save(self, documents: Mapping[str, Any]) -> bool:
        """Write what is known now, and return whether that was possible. Nothing is written before `load` has read."""
        if not self.is_loaded:
            return False
        try:
            self._store.write(documents)
        except LedgerError as error:
            log.warning("health is not saved", extra=fields(code=error.code, err=str(error)))
            return False
        return True

    def holds_history(self) -> bool:
        """Return whether the store holds something that a new agent would not find out again, or can't be read."""
        try:
            before = self._before(self._store.read())
        except (LedgerError, ValueError):
            return True
        return before.record.has_history or before.is_lost


class SavePace:
    """When the monitor saves: at once if a fault takes a device out of use, otherwise rarely, to spare the disk."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._content: Hashable = None
        self._out: frozenset[Hashable] = frozenset()

    def is_due(self, now: float, content: Hashable, out: frozenset[Hashable]) -> bool:
        """Return whether to save now; `out` are the faults that take devices out of use."""
        changed_s = 0.0 if out - self._out else CHANGE_SECONDS
        pause = changed_s if content != self._content else SAVE_SECONDS
        return not 0 <= now - self._at < pause

    def saved(self, now: float, content: Hashable, out: frozenset[Hashable]) -> None:
        """Remember what is on disk now."""
        self._at, self._content, self._out = now, content, out


def documents_of(record: HealthRecord, offset: float, known: KnownGpus, *, is_lost: bool) -> dict[str, Any]:
    """Return the documents that `load` reads back; `offset` is that of the time that people read."""
    return {RECORD: record_wire(record, offset), GPUS: known.to_wire(), UNPROVEN: is_lost}


def joined(before: HealthRecord, now: HealthRecord) -> HealthRecord:
    """Return what was known before, together with what was observed until that could be read."""
    tracks = {key: _worse(track, now.tracks.get(key)) for key, track in before.tracks.items()}
    xids = {key: _both(before.xids[key], seen) if key in before.xids else seen for key, seen in now.xids.items()}
    position = max(before.log_position, now.log_position)
    return HealthRecord(
        now.boot, {**before.xids, **xids}, {**now.tracks, **tracks}, {**before.gpus, **now.gpus}, position
    )


def _both(before: XidHistory, now: XidHistory) -> XidHistory:
    """Return two histories of one Xid as one. Both may have counted the same reports, so the larger count is used."""
    counts = before.counts if before.count > now.count else now.counts
    return XidHistory(min(before.first, now.first), max(before.last, now.last), counts)


def _worse(before: FaultTrack, now: FaultTrack | None) -> FaultTrack:
    if now is None or not now.is_raised:
        return before
    return replace(now, since=min(now.since, before.since)) if before.is_raised else now


class FreshLook:
    """Whether the GPUs of one node, whose history was lost, were looked at again. It is over while none was begun.

    A GPU was looked at once it was read after the loss and no reading needs a second one. One that can't be read delays
    this only for a while, because what the node can't find out does not keep GPUs from claims for good.
    """

    def __init__(self) -> None:
        self._began: float | None = None

    @property
    def is_over(self) -> bool:
        """Return whether nothing was lost, or every GPU was looked at since."""
        return self._began is None

    def begin(self, now: float) -> None:
        """Begin to look: what was known of the GPUs is lost."""
        self._began = now

    def follow(self, record: HealthRecord, gpus: Iterable[str], now: float) -> None:
        """End the look if the record shows that every one of these GPUs was looked at."""
        if self._began is None:
            return
        gpus, read = tuple(gpus), {gpu: state.action_at for gpu, state in record.gpus.items()}
        silent = {subject.gpu for (subject, key), one in record.tracks.items() if _is_silent(key) and one.is_raised}
        is_seen = all(read.get(gpu, 0.0) > self._began or gpu in silent for gpu in gpus)
        if (gpus and is_seen and not record.has_suspicion) or now - self._began > LOOK_SECONDS:
            self._began = None


def _is_silent(key: FaultKey) -> bool:
    return key in (FaultKey.UNMONITORED, FaultKey.GPU_LOST, FaultKey.NOT_ANSWERING)
