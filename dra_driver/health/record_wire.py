"""The record as JSON values, in which form it is kept on disk.

In: a `HealthRecord`. Out: plain values, and back again. Values that can't be read back raise ValueError; the reader
then starts with an empty record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dra_driver.hardware.evidence import Source
from dra_driver.health.fault import FaultKey, Subject
from dra_driver.health.fault_track import FaultTrack
from dra_driver.health.record import GpuState, HealthRecord, XidHistory
from dra_driver.health.store import RECORD


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
