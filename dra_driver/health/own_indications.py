"""Own indications: faults that this driver itself finds, such as a missing GPU, a failed test or a silent library.

In: a record, and the observation. Out: the record with the resulting indications. A fault that is already recorded gets
no further indication, so that its count does not grow with every check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_driver.hardware.evidence import HealthReport
from dra_driver.health.fault import FaultKey, Subject
from dra_driver.health.indications import Indication
from dra_driver.health.record import HealthRecord

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
