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
from dataclasses import dataclass, field, replace
from pathlib import Path

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.metered import (
    LAST_XID,
    FamilyHead,
    MeterReport,
    MetricName,
    MetricNames,
    Pairs,
    Reading,
    SampleKind,
    labels_text,
    sample_line,
)
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.metering.holders import Holder, RecentEvents, Subject, subject_of_gpu, uses_of

# Subjects: the labels that identify the GPU or GPU instance of a series, and its holder.


@dataclass(frozen=True, slots=True)
class LabelStyle:
    """How series are labelled: the node's name under `hostname_label`, and fields that are labels of every series."""

    node: str
    driver: str
    names: MetricNames
    hostname_label: str = "Hostname"
    fields: tuple[str, ...] = ()


def gpus_of(inventory: Inventory) -> tuple[GpuFacts, ...]:
    """Return this node's GPUs in the order of their PCI addresses, which is that of the library's indices.

    A GPU that the hardware itself divides is listed as a whole, followed by each of its parts.
    """
    devices = (*inventory.offering.every(), *inventory.hidden)
    gpus = {id(device.gpu): device.gpu for device in devices}.values()  # most devices of a GPU refer to the same facts
    found = {subject_of_gpu(gpu): gpu for gpu in gpus}
    return tuple(found[address, number] for address, number in sorted(found, key=_order))


def labels_of_subjects(gpus: Iterable[GpuFacts], style: LabelStyle, driver_version: str) -> dict[Subject, Pairs]:
    """Return the labels of each GPU, and of each of its GPU instances or parts."""
    found: dict[Subject, Pairs] = {}
    index = 0
    for gpu in gpus:
        head = style.names.gpu_labels(index, gpu)
        tail = ((style.hostname_label, style.node), *_fields(gpu, style, driver_version))
        found[subject_of_gpu(gpu)] = (*head, *tail)
        if gpu.part_number is not None:  # the GPU as a whole is measured even if it is not a device
            found.setdefault((gpu.pci_address, None), (*style.names.gpu_labels(index, replace(gpu, part="")), *tail))
        for partition in gpu.partitions:
            instance = style.names.instance_labels(partition)
            found.setdefault((gpu.pci_address, partition.gi_id), (*head, *instance, *tail))
        index += not gpu.parts  # a divided GPU as a whole has the index of its first part
    return found


def labels_of_holder(holder: Holder, partition: PartitionFacts | None, style: LabelStyle) -> Pairs:
    """Return the labels that identify the holder of a series."""
    pod, pod_uid, container = holder.pod
    mig: Pairs = ()
    if partition is not None:
        mig = (("dra_mig_profile", partition.profile), ("dra_mig_device_uuid", partition.uuid))
    return (
        ("namespace", holder.namespace),
        ("pod", pod),
        ("container", container),
        ("pod_uid", pod_uid),
        ("dra_claim_name", holder.name),
        ("dra_claim_namespace", holder.namespace),
        ("dra_claim_uid", holder.uid),
        ("dra_driver_name", style.driver),
        ("dra_pool_name", holder.pool),
        ("dra_device_name", holder.device),
        ("dra_device_class", holder.device_class),
        ("dra_share_id", holder.share_id),
        *mig,
    )


def partitions_of(gpus: Iterable[GpuFacts]) -> Mapping[Subject, PartitionFacts]:
    """Return the partition of each GPU instance, the first one if an instance has several."""
    found: dict[Subject, PartitionFacts] = {}
    for gpu in gpus:
        for partition in gpu.partitions:
            found.setdefault((gpu.pci_address, partition.gi_id), partition)
    return found


def text_of(*parts: Pairs) -> str:
    """Return label pairs as text."""
    return labels_text(pair for part in parts for pair in part)


def _order(subject: Subject) -> tuple[str, int]:
    return subject[0], -1 if subject[1] is None else subject[1]


def _fields(gpu: GpuFacts, style: LabelStyle, driver_version: str) -> Pairs:
    return tuple((name, style.names.fields[name](gpu, driver_version)) for name in style.fields)


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


# Own series: metrics for which the common exporter has no name.

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
