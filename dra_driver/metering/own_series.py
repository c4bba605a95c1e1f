"""Own series: metrics for which the common exporter has no name.

In: a snapshot, the time. Out: lines: which claim has which device, how old the readings are, how often each Xid
occurred.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.metering.series import MeterSnapshot
from dra_driver.metering.subjects import labels_of_holder, labels_of_subjects, partitions_of, text_of
from dra_driver.telemetry.exposition import FamilyHead, SampleKind, sample_line

CLAIM_DEVICE = FamilyHead(
    "dra_claim_device_info", SampleKind.GAUGE, "1 for each device of a claim and each container that has the claim."
)
XIDS = FamilyHead("dra_gpu_xids_total", SampleKind.COUNTER, "Xid errors of a GPU or a GPU instance since the start.")
AGE = FamilyHead("dra_telemetry_age_seconds", SampleKind.GAUGE, "Age of the newest reading of each GPU.")


def claim_lines(snapshot: MeterSnapshot) -> Iterator[str]:
    """Yield which claim has which device; a claim of several containers has a line for each."""
    heads = labels_of_subjects(snapshot.gpus, snapshot.style, snapshot.driver_version)
    partitions = partitions_of(snapshot.gpus)
    lines = []
    for subject, holders in snapshot.holders.items():
        for holder in holders:
            pairs = labels_of_holder(holder, partitions.get(subject), snapshot.style)
            for user in holder.users or (None,):
                named = {"pod": user.pod, "container": user.container} if user else {}
                own = tuple((name, named.get(name, value)) for name, value in pairs)
                lines.append(sample_line(CLAIM_DEVICE.name, text_of(heads.get(subject, ()), own), 1.0))
    if lines:
        yield from CLAIM_DEVICE.lines()
        yield from dict.fromkeys(lines)


def xid_lines(snapshot: MeterSnapshot) -> Iterator[str]:
    """Yield how often each Xid was reported; unlike the newest code, a count grows with each report."""
    heads = labels_of_subjects(snapshot.gpus, snapshot.style, snapshot.driver_version)
    lines = [
        sample_line(XIDS.name, text_of(heads[subject], (("xid", str(code)),)), float(count))
        for subject, counts in sorted(snapshot.report.xids.items(), key=lambda row: (row[0][0], row[0][1] or -1))
        if subject in heads
        for code, count in sorted(counts.items())
    ]
    if lines:
        yield from XIDS.lines()
        yield from lines


class ReadingAges:
    """The age of the newest reading of each GPU, computed at each scrape."""

    def __init__(self, snapshot: MeterSnapshot) -> None:
        heads = labels_of_subjects(snapshot.gpus, snapshot.style, snapshot.driver_version)
        whole = (reading for reading in snapshot.report.readings if (reading.gpu, None) in heads)
        self._read: dict[str, tuple[str, float]] = {}
        for reading in whole:
            at = max(reading.at, self._read.get(reading.gpu, ("", 0.0))[1])
            self._read[reading.gpu] = (text_of(heads[reading.gpu, None]), at)

    def lines(self, now: float) -> Iterator[str]:
        """Yield the ages in seconds."""
        if self._read:
            yield from AGE.lines()
        for labels, at in self._read.values():
            yield sample_line(AGE.name, labels, round(max(0.0, now - at), 3))
