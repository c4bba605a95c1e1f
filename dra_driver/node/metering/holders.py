"""Holders: which claim has which device, and which pods have the claim.

In: the ledger's records, the inventory, the kubelet's report. Out: the holders of each subject: a GPU as a whole, or
one of its GPU instances. Devices with admin access are not held. Pure.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.base.wire import ClaimName
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.metered import (
    RECENT_CLOCK_EVENTS,
    RECENT_XIDS,
    Measure,
    MeterReport,
    ProcessUse,
    Reading,
    Values,
)
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.ledger.record import ClaimRecord, ClaimState, devices_of_record, pod_names_of_record
from dra_driver.node.neighbours.pod_resources import ClaimUser

Subject = tuple[str, int | None]
"""A GPU by PCI address, and the id of one of its GPU instances, the number of one of its parts, or None."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One device of one claim. `users` are the pods and containers that the kubelet reports for the claim.

    `pod_uids` are the pods for which the claim was reserved when it was prepared, and `pod_names` their names.
    """

    uid: str
    namespace: str
    name: str
    device: str
    pool: str
    share_id: str
    device_class: str
    pod_uids: tuple[str, ...]
    pod_names: tuple[tuple[str, str], ...]
    users: tuple[ClaimUser, ...]

    @property
    def pod(self) -> tuple[str, str, str]:
        """The name, the UID and the container of the only pod that has the claim; "" for each that is not unique."""
        names = {user.pod for user in self.users} or {name for _, name in self.pod_names}
        containers = {user.container for user in self.users}
        name = next(iter(names)) if len(names) == 1 else ""
        uids = [uid for uid, known in self.pod_names if known == name]
        if not uids and len(self.pod_uids) == 1 and not self.pod_names:
            uids = list(self.pod_uids)
        uid = uids[-1] if name and len(uids) == 1 else ""
        return name, uid, next(iter(containers)) if name and len(containers) == 1 else ""


def holders_of(
    records: Iterable[ClaimRecord], inventory: Inventory, users: Mapping[ClaimName, tuple[ClaimUser, ...]]
) -> dict[Subject, tuple[Holder, ...]]:
    """Return the holders of each subject, in the order of the claims' names."""
    found: dict[Subject, list[Holder]] = {}
    for record in records:
        if record.state == ClaimState.UNPREPARING:
            continue
        for holder in _of_record(record, users.get((record.namespace, record.name), ())):
            subject = subject_of(inventory.find(holder.device, holder.share_id))
            if subject is not None:
                found.setdefault(subject, []).append(holder)
    return {subject: tuple(sorted(holders, key=_order)) for subject, holders in found.items()}


def subject_of(device: Device | None) -> Subject | None:
    """Return the subject for a device or the device that it is a share of; None if the partition does not exist."""
    if device is None:
        return None
    if device.partition is None and device.placement is None:
        return subject_of_gpu(device.gpu)
    if device.partition is not None:
        return device.gpu.pci_address, device.partition.gi_id
    placement = device.placement
    existing = (one.gi_id for one in device.gpu.partitions if placement is not None and placement.is_at(one))
    gi_id = next(existing, None)
    return None if gi_id is None else (device.gpu.pci_address, gi_id)


def subject_of_gpu(gpu: GpuFacts) -> Subject:
    """Return the subject for a GPU, or for one part of a GPU that the hardware itself divides."""
    return gpu.pci_address, gpu.part_number


def _of_record(record: ClaimRecord, users: tuple[ClaimUser, ...]) -> Iterator[Holder]:
    names = pod_names_of_record(record.allocation)
    for device in devices_of_record(record.allocation):
        if device.is_admin:
            continue
        yield Holder(
            uid=record.uid,
            namespace=record.namespace,
            name=record.name,
            device=device.device,
            pool=device.pool,
            share_id=device.share_id or "",
            device_class=device.device_class,
            pod_uids=record.pods,
            pod_names=names,
            users=users,
        )


def _order(holder: Holder) -> tuple[str, str, str, str]:
    return holder.namespace, holder.name, holder.device, holder.share_id


# Recent events: what happened to each GPU in the last five minutes, for names that count in a window.

WINDOW_SECONDS = 300
_REASONS = {
    0x1: "gpu_idle", 0x2: "clocks_setting", 0x4: "power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
Xids = Mapping[Subject, Mapping[int, int]]


class RecentEvents:
    """The last minutes of one node. Not thread-safe."""

    def __init__(self) -> None:
        self._xids: deque[tuple[float, Xids]] = deque()  # the counts at past times; the first is the base
        self._reasons: dict[Subject, deque[tuple[float, int]]] = {}

    def update(self, report: MeterReport, now: float) -> None:
        """Add new events, and forget those that are older than the window. The clock may be set back."""
        if not self._xids:
            self._xids.append((now, {}))
        if self._xids[-1][1] != report.xids:
            self._xids.append((now, report.xids))
        while len(self._xids) > 1 and not 0 <= now - self._xids[1][0] <= WINDOW_SECONDS:
            self._xids.popleft()
        here = {(one.gpu, one.gi_id): one for one in report.readings if Measure.CLOCK_REASONS in one.values}
        self._reasons = {subject: found for subject, found in self._reasons.items() if subject in here}
        for subject, one in here.items():
            found = self._reasons.setdefault(subject, deque())
            if not found or found[-1][0] != one.at:
                found.append((one.at, int(one.values[Measure.CLOCK_REASONS])))
            while found and not 0 <= one.at - found[0][0] <= WINDOW_SECONDS:
                found.popleft()

    def counts(self, quantity: str, subject: Subject) -> Iterator[tuple[tuple[tuple[str, str], ...], int]]:
        """Yield the labels and the count of each kind of event; if there was none, one count of 0 without a kind."""
        if quantity == RECENT_XIDS:
            label, found = "xid", self._recent_xids(subject)
        elif quantity == RECENT_CLOCK_EVENTS:
            label, found = "clock_event", self._recent_reasons(subject)
        else:
            return
        window = ("window_size_in_ms", str(WINDOW_SECONDS * 1000))
        if not found and subject[1] is None:
            yield (window,), 0
        for kind, count in sorted(found.items()):
            yield (window, (label, kind)), count

    def _recent_xids(self, subject: Subject) -> dict[str, int]:
        if len(self._xids) < 2:
            return {}
        before, counts = (self._xids[index][1].get(subject, {}) for index in (0, -1))
        return {str(code): count - before.get(code, 0) for code, count in counts.items() if count > before.get(code, 0)}

    def _recent_reasons(self, subject: Subject) -> dict[str, int]:
        found: Counter[str] = Counter()
        for _, bits in self._reasons.get(subject, ()):
            found.update(name for bit, name in _REASONS.items() if bits & bit)
        return dict(found)


# Attribution: how much of a shared device each of its claims uses, by the processes of their pods.

_POD = re.compile(r"pod([0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12})")
_BYTES = 16384


@dataclass(frozen=True, slots=True)
class HolderUse:
    """What the processes of one holder use; None for a value that the driver does not report."""

    memory_bytes: float | None
    sm_percent: float | None

    @property
    def values(self) -> Values:
        """Return the known values as quantities."""
        known: dict[str, float] = {}
        if self.memory_bytes is not None:
            known[Measure.MEMORY_USED_BYTES] = self.memory_bytes
        if self.sm_percent is not None:
            known[Measure.GPU_PERCENT] = self.sm_percent
        return known


def pod_of_process(pid: int, proc: Path) -> str:
    """Return the UID of the pod that a process belongs to; "" if it belongs to no pod or has ended."""
    try:
        with (proc / str(pid) / "cgroup").open("rb") as file:
            found = _POD.search(file.read(_BYTES).decode(errors="replace"))
    except OSError:
        return ""
    return found[1].replace("_", "-").lower() if found else ""


def uses_of(holders: tuple[Holder, ...], processes: Iterable[ProcessUse], proc: Path) -> dict[Holder, HolderUse]:
    """Return the use of each holder. A holder without a process uses 0 of what the driver reports for processes."""
    rows = tuple(processes)
    by_pod: dict[str, list[ProcessUse]] = {}
    for row in rows:
        by_pod.setdefault(pod_of_process(row.pid, proc), []).append(row)
    has_percents = any(row.sm_percent is not None for row in rows)
    found: dict[Holder, HolderUse] = {}
    taken: set[str] = {""}
    for holder in holders:
        pods = [uid.lower() for uid in holder.pod_uids if uid.lower() not in taken]
        taken.update(pods)
        own = [one for uid in pods for one in by_pod.get(uid, ())]
        found[holder] = HolderUse(_memory(own), sum(one.sm_percent or 0.0 for one in own) if has_percents else None)
    return found


def _memory(own: list[ProcessUse]) -> float | None:
    known = [one.memory_bytes for one in own if one.memory_bytes is not None]
    return float(sum(known)) if len(known) == len(own) else None


# Measured: how busy each holder of a device was since the previous reading.

_MAX_POWER_MW = 1e8  # no device draws 100 kW


@dataclass(frozen=True, slots=True)
class HolderReading:
    """The measurements of one holder over the seconds before a reading; None for what was not measured."""

    holder: Holder
    seconds: float
    busy_ratio: float | None
    sm_ratio: float | None
    memory_bytes: float | None
    energy_mj: float | None


class Intervals:
    """The time between the last two readings of each subject. Not thread-safe."""

    def __init__(self, beat_s: float, proc: Path) -> None:
        self._longest_s, self._proc = 3 * beat_s, proc
        self._last: dict[Subject, Reading] = {}

    def of(
        self, readings: tuple[Reading, ...], holders: Mapping[Subject, tuple[Holder, ...]]
    ) -> Iterator[HolderReading]:
        """Yield what was measured since the last call; nothing for a subject whose last reading is too long ago."""
        before, self._last = self._last, {(one.gpu, one.gi_id): one for one in readings}
        for subject, reading in self._last.items():
            last = before.get(subject)
            seconds = reading.at - last.at if last is not None else 0.0
            if last is None or not 0 < seconds <= self._longest_s:
                continue
            held = holders.get(subject, ())
            if len(held) == 1:
                yield _of_only(held[0], reading, last, seconds)
            elif held and reading.processes is not None:
                for holder, use in uses_of(held, reading.processes, self._proc).items():
                    busy = None if use.sm_percent is None else min(1.0, use.sm_percent / 100)
                    yield HolderReading(holder, seconds, busy, None, use.memory_bytes, None)


def _of_only(holder: Holder, reading: Reading, last: Reading, seconds: float) -> HolderReading:
    values = reading.values
    percent = values.get(Measure.GPU_PERCENT)
    busy = values.get(Measure.GRAPHICS_RATIO, None if percent is None else percent / 100)
    energy = None
    if Measure.ENERGY_MJ_TOTAL in values and Measure.ENERGY_MJ_TOTAL in last.values:
        used = values[Measure.ENERGY_MJ_TOTAL] - last.values[Measure.ENERGY_MJ_TOTAL]
        energy = used if 0 <= used <= _MAX_POWER_MW * seconds else None  # None if the counter was reset
    memory = values.get(Measure.MEMORY_USED_BYTES)
    return HolderReading(holder, seconds, busy, values.get(Measure.SM_RATIO), memory, energy)
