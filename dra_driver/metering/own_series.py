"""Own series: metrics for which the common exporter has no name.

In: a scene, the time. Out: lines: which claim has which device, how old the readings are, how often each Xid occurred.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.metering.series import Scene
from dra_driver.metering.subjects import labels_of_holder, labels_of_subjects, partitions_of, text_of
from dra_driver.telemetry.exposition import FamilyHead, SampleKind, sample_line

CLAIM_DEVICE = FamilyHead(
    "dra_claim_device_info", SampleKind.GAUGE, "1 for each device of a claim and each container that has the claim."
)
XIDS = FamilyHead("dra_gpu_xids_total", SampleKind.COUNTER, "Xid errors of a GPU or a GPU instance since the start.")
AGE = FamilyHead("dra_telemetry_age_seconds", SampleKind.GAUGE, "Age of the newest reading of each GPU.")


def claim_lines(scene: Scene) -> Iterator[str]:
    """Yield which claim has which device; a claim of several containers has a line for each."""
    heads = labels_of_subjects(scene.gpus, scene.style, scene.driver_version)
    partitions = partitions_of(scene.gpus)
    lines = []
    for subject, holders in scene.holders.items():
        for holder in holders:
            pairs = labels_of_holder(holder, partitions.get(subject), scene.style)
            for user in holder.users or (None,):
                named = {"pod": user.pod, "container": user.container} if user else {}
                own = tuple((name, named.get(name, value)) for name, value in pairs)
                lines.append(sample_line(CLAIM_DEVICE.name, text_of(heads.get(subject, ()), own), 1.0))
    if lines:
        yield from CLAIM_DEVICE.lines()
        yield from dict.fromkeys(lines)


def xid_lines(scene: Scene) -> Iterator[str]:
    """Yield how often each Xid was reported; unlike the newest code, a count grows with each report."""
    heads = labels_of_subjects(scene.gpus, scene.style, scene.driver_version)
    lines = [
        sample_line(XIDS.name, text_of(heads[subject], (("xid", str(code)),)), float(count))
        for subject, counts in sorted(scene.report.xids.items(), key=lambda row: (row[0][0], row[0][1] or -1))
        if subject in heads
        for code, count in sorted(counts.items())
    ]
    if lines:
        yield from XIDS.lines()
        yield from lines


class Ages:
    """The age of the newest reading of each GPU, computed at each scrape."""

    def __init__(self, scene: Scene) -> None:
        heads = labels_of_subjects(scene.gpus, scene.style, scene.driver_version)
        whole = (reading for reading in scene.report.readings if (reading.gpu, None) in heads)
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
