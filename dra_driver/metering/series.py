"""Series: readings and holders as samples, so that no sum over a name counts anything twice.

In: readings, holders, labels. Out: lines of text. The rules:

- A device that one claim holds has one series per name, with the claim's labels.
- A device that several claims hold has one series per name without them. For quantities that are known by process
  (memory, and the time of the multiprocessors without MIG) it also has one for each claim, and the first series is what
  is left.
- A quantity that the GPU instances of a GPU report is not repeated for the GPU as a whole. One that only the GPU as a
  whole reports is not repeated for its instances, unless `repeats_gpu` is set; then it is shown on the instances only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.metered import MeterReport, Reading
from dra_driver.hardware.metric_names import LAST_XID, MetricName
from dra_driver.metering.attribution import uses_of
from dra_driver.metering.holders import Holder, Subject
from dra_driver.metering.recent import RecentEvents
from dra_driver.metering.subjects import LabelStyle, labels_of_holder, labels_of_subjects, partitions_of, text_of
from dra_driver.telemetry.exposition import labels_text, sample_line


@dataclass(frozen=True, slots=True)
class MeterSnapshot:
    """Everything that one text is rendered from. `proc` is where processes are looked up."""

    gpus: tuple[GpuFacts, ...]
    driver_version: str
    report: MeterReport
    holders: Mapping[Subject, tuple[Holder, ...]]
    style: LabelStyle
    proc: Path
    repeats_gpu: bool = False
    recent: RecentEvents = field(default_factory=RecentEvents)


@dataclass(slots=True)
class SubjectSeries:
    """The series of one subject: its values, and those of each of its claims if it has several."""

    subject: Subject
    labels: str
    values: dict[str, float]
    last_xid: int | None
    parts: list[tuple[str, Mapping[str, float]]] = field(default_factory=list)


def lines_of(names: Iterable[MetricName], snapshot: MeterSnapshot) -> Iterator[str]:
    """Yield the lines of all names that have a sample."""
    subjects = tuple(_subjects(snapshot))
    headed = None
    for name in names:
        samples = [line for subject in subjects for line in _samples(name, subject, snapshot.recent)]
        if samples:
            if headed != name.head:
                yield from name.head.lines()
            headed = name.head
            yield from samples


def _samples(name: MetricName, subject: SubjectSeries, recent: RecentEvents) -> Iterator[str]:
    if name.quantity == LAST_XID and subject.last_xid is not None:
        yield sample_line(name.head.name, subject.labels, float(subject.last_xid))
    for pairs, count in recent.counts(name.quantity, subject.subject):
        yield sample_line(name.head.name, f"{subject.labels},{labels_text(pairs)}", float(count))
    if name.quantity not in subject.values:
        return
    parts = [(labels, values[name.quantity]) for labels, values in subject.parts if name.quantity in values]
    left = max(0.0, subject.values[name.quantity] - sum(value for _, value in parts))
    more = f",{labels_text(name.labels)}" if name.labels else ""
    yield sample_line(name.head.name, subject.labels + more, name.value(left))
    for labels, value in parts:
        yield sample_line(name.head.name, labels + more, name.value(value))


def _subjects(snapshot: MeterSnapshot) -> Iterator[SubjectSeries]:
    heads = labels_of_subjects(snapshot.gpus, snapshot.style, snapshot.driver_version)
    partitions = partitions_of(snapshot.gpus)
    by_gpu: dict[str, dict[Subject, Reading]] = {}
    for reading in snapshot.report.readings:
        if (reading.gpu, reading.gi_id) in heads:
            by_gpu.setdefault(reading.gpu, {})[reading.gpu, reading.gi_id] = reading
    for address in dict.fromkeys(gpu.pci_address for gpu in snapshot.gpus):
        readings = by_gpu.get(address, {})
        for subject, values in _without_repeats(readings, repeats_gpu=snapshot.repeats_gpu).items():
            yield _of_subject(snapshot, readings[subject], values, heads[subject], partitions.get(subject))


def _without_repeats(readings: Mapping[Subject, Reading], *, repeats_gpu: bool) -> dict[Subject, dict[str, float]]:
    """Return the values of each subject of one GPU, without those that another subject reports as well."""
    values = {subject: dict(reading.values) for subject, reading in readings.items()}
    whole = next((subject for subject in values if subject[1] is None), None)
    instances = [subject for subject in values if subject[1] is not None]
    if whole is None or not instances:
        return values
    of_instances = {quantity for subject in instances for quantity in values[subject]}
    rest = {quantity: value for quantity, value in values[whole].items() if quantity not in of_instances}
    if not repeats_gpu:
        return {**values, whole: rest}
    return {subject: {**rest, **values[subject]} for subject in instances}


def _of_subject(
    snapshot: MeterSnapshot,
    reading: Reading,
    values: dict[str, float],
    head: tuple[tuple[str, str], ...],
    partition: PartitionFacts | None,
) -> SubjectSeries:
    subject = (reading.gpu, reading.gi_id)
    holders = snapshot.holders.get(subject, ())
    own = {holder: labels_of_holder(holder, partition, snapshot.style) for holder in holders}
    only = own[holders[0]] if len(holders) == 1 else ()
    last = snapshot.report.last_xids.get(subject, 0 if reading.gi_id is None else None)
    made = SubjectSeries(subject, text_of(head, only), values, last)
    if len(holders) > 1 and reading.processes is not None:
        uses = uses_of(holders, reading.processes, snapshot.proc)
        made.parts = [(text_of(head, own[holder]), use.values) for holder, use in uses.items()]
    return made
