"""dmem: the kernel's cgroup controller for the memory of devices, which limits how much of it a cgroup may have.

In: the root of all cgroups, PCI addresses, folders of cgroups. Out: regions and their sizes; limits that are set, and
read back. A cgroup can have a limit only if every cgroup above it enables the controller for its children
(`cgroup.subtree_control`). That is done here, from the root down, and never undone: others may rely on it, and undoing
it would end their limits. A limit holds for what the processes below the cgroup allocate from then on.

Source: Linux Documentation/admin-guide/cgroup-v2, "DMEM" (6.14 and newer), "Controlling Controllers".
"""

from __future__ import annotations

import errno
import math
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.telemetry.logs import PartThread
from dra_driver.hardware.evidence import BusState, HealthReport, KernelRecords, Vitals
from dra_driver.hardware.metered import MeterPlan, MeterReport, Reading
from dra_driver.hardware.pci import MAX_MEMORY_BYTES, bus_states, entries_of, read_text
from dra_driver.hardware.port import Roots

CGROUPS = "fs/cgroup"  # below sysfs
_CONTROLLER = "dmem"
_LIMITS, _CONTROLLERS, _PASSED_ON = "dmem.max", "cgroup.controllers", "cgroup.subtree_control"
_PAGE_BYTES = 4096  # the kernel counts in pages
_HINT = "memory limits need Linux 6.14 with CONFIG_CGROUP_DMEM, cgroup v2, and its tree writable for the agent"


@dataclass(frozen=True, slots=True)
class Region:
    """A region of a device's memory that can be limited: its name ("drm/0000:03:00.0/vram") and its size in bytes."""

    name: str
    capacity: int


def own_memory(roots: Roots, address: str) -> tuple[Region, ...]:
    """Return the regions of a GPU's own memory; none where the kernel has no such controller or region.

    amdgpu calls the region vram, xe has one for each tile (vram0 …).
    """
    text = read_text(Path(roots.sys, CGROUPS, "dmem.capacity")) or ""
    found = re.findall(rf"^(drm/{re.escape(address)}/vram\d*) (\d{{1,20}})$", text, re.MULTILINE)
    return tuple(Region(name, int(size)) for name, size in found if 0 < int(size) < MAX_MEMORY_BYTES)


def dmem_capacity(roots: Roots, address: str) -> int | None:
    """Return how many bytes of a GPU's own memory the root cgroup can hand out, or None if it does not report that."""
    total = sum(region.capacity for region in own_memory(roots, address))
    return total if 0 < total < MAX_MEMORY_BYTES else None


def is_offered(roots: Roots) -> bool:
    """Return whether the root of the cgroups offers the controller."""
    return _CONTROLLER in (read_text(Path(roots.sys, CGROUPS, _CONTROLLERS)) or "").split()


def set_limit(region: Region, cgroup: Path, limit: int | None) -> None:
    """Limit a cgroup to `limit` bytes of a region, None for no limit. A cgroup that is gone has nothing to be limited.

    Raises: HardwareError("hardware.memory-limit-unsupported", "hardware.no-permission", "hardware.memory-limit-failed",
    LATER).
    """
    if limit is None and not (cgroup / _LIMITS).exists():
        return
    try:
        _pass_on(cgroup)
        write_kernel_file(cgroup / _LIMITS, f"{region.name} {'max' if limit is None else limit}\n")
    except OSError as exc:
        if not cgroup.is_dir():
            return
        raise _refusal(region, cgroup, exc) from exc
    found = limit_of(region, cgroup)
    if cgroup.is_dir() and found != (None if limit is None else limit // _PAGE_BYTES * _PAGE_BYTES) and found != limit:
        text = f"the limit of {region.name} for {cgroup} reads {found} after {limit} was written"
        raise HardwareError("memory-limit-failed", text, retry=Retry.LATER)


def limit_of(region: Region, cgroup: Path) -> int | None:
    """Return the limit of a cgroup in bytes; None if it has none, whatever the reason."""
    text = read_text(cgroup / _LIMITS) or ""
    found = re.search(rf"^{re.escape(region.name)} (\d{{1,20}})$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _pass_on(cgroup: Path) -> None:
    """Enable the controller for the children of every cgroup above this one. Raises: OSError, HardwareError."""
    above = []
    for folder in cgroup.parents:
        if not (folder / _PASSED_ON).exists():
            break
        above.append(folder)
    for folder in reversed(above):
        if _CONTROLLER in (read_text(folder / _PASSED_ON) or "").split():
            continue
        if _CONTROLLER not in (read_text(folder / _CONTROLLERS) or "").split():
            raise HardwareError("memory-limit-unsupported", f"{folder} has no controller {_CONTROLLER}", hint=_HINT)
        write_kernel_file(folder / _PASSED_ON, f"+{_CONTROLLER}\n")


def write_kernel_file(path: Path, text: str) -> None:
    """Write a file of the kernel with a single call; a file that does not exist is not created. Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _refusal(region: Region, cgroup: Path, exc: OSError) -> HardwareError:
    text = f"the memory of {region.name} can't be limited for {cgroup}: {exc.strerror}"
    if exc.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return HardwareError("no-permission", text, hint=_HINT)
    if exc.errno in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}:
        return HardwareError("memory-limit-unsupported", text, hint=_HINT)
    return HardwareError("memory-limit-failed", text, retry=Retry.LATER)


# The health watch for GPUs that are read from sysfs: rounds of readings by a thread of its own.

POLL_SECONDS = 10.0
SILENT_SECONDS = 5.0  # a round takes milliseconds; one that takes longer hangs in a driver


@dataclass(frozen=True, slots=True)
class VitalsSource:
    """What reads the vitals of each GPU, and the kernel log if that is one of its sources."""

    read: Callable[[], Iterable[Vitals]]
    log: KernelRecords | None = None


class SysfsWatch:
    """A thread that reads the vitals of all GPUs, from the construction of this object until `close`.

    Raises: NodeError("node.thread").
    """

    def __init__(
        self, vendor: str, source: VitalsSource, notify: Callable[[], None], *, poll_s: float = POLL_SECONDS
    ) -> None:
        self._source, self._notify, self._poll_s = source, notify, poll_s
        self._changed = threading.Condition()
        self._vitals: dict[str, Vitals] = {}
        self._rounds, self._wanted = 0, 0
        self._began: float | None = None  # when the round under way began
        self._is_closed = False
        self._thread = PartThread(f"{vendor}-health", self._run, hang_s=math.inf)  # a read may hang in a driver
        self._thread.start()

    def report(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was read since the last call; if it `is_urgent`, wait for a round that begins now."""
        with self._changed:
            if is_urgent:
                wanted = self._wanted = self._rounds + (2 if self._began is not None else 1)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._rounds >= wanted or self._is_closed, patience_s)
            vitals, began = tuple(self._vitals.values()), self._began
            self._vitals.clear()
        silent = time.monotonic() - began if began is not None else 0.0
        return HealthReport(
            readings=vitals,
            silent_s=silent if silent >= SILENT_SECONDS else 0.0,
            problem=self._source.log.problem if self._source.log else "",
        )

    def close(self) -> None:
        """Stop reading."""
        self._thread.release()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self, _thread: PartThread) -> None:
        try:
            self._read_rounds()
        finally:
            if self._source.log is not None:
                self._source.log.close()

    def _read_rounds(self) -> None:
        while not self._is_closed:
            with self._changed:
                self._began = time.monotonic()
            found = {one.gpu: one for one in self._source.read()}
            with self._changed:
                self._vitals.update(found)
                self._began, self._rounds = None, self._rounds + 1
                self._changed.notify_all()
            self._notify()
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._wanted > self._rounds, self._poll_s)


# The meter for GPUs that are read from sysfs: rounds of readings by a thread of its own.


class SysfsMeter:
    """A thread that measures, from the construction of this object until `close`. Any thread may call any method.

    Raises: NodeError("node.thread").
    """

    def __init__(self, vendor: str, plan: MeterPlan, read: Callable[[], Iterable[Reading]]) -> None:
        self._plan, self._read = plan, read
        self._readings: tuple[Reading, ...] = ()
        self._end = threading.Event()
        self._thread = PartThread(f"{vendor}-meter", self._run, hang_s=math.inf)  # a read may hang in a driver
        self._thread.start()

    def report(self) -> MeterReport:
        """Return the newest readings."""
        return MeterReport(self._readings)

    def close(self) -> None:
        """Stop measuring."""
        self._thread.release()
        self._end.set()

    def _run(self, _thread: PartThread) -> None:
        while not self._end.is_set():
            self._readings = tuple(self._read())
            self._plan.notify()
            self._end.wait(self._plan.beat_s)


# Observation: the health and the measurements of GPUs from sysfs.


class SysfsObservation(ABC):
    """GPUs that are observed by reading sysfs; a vendor's hardware derives from it.

    Args:
        roots: where the node's trees are.
    """

    vendor: str
    drivers: tuple[str, ...]  # the kernel drivers that make the vendor's GPUs usable

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._watch: SysfsWatch | None = None
        self._meter: SysfsMeter | None = None

    @abstractmethod
    def _vitals_source(self) -> VitalsSource:
        """Return what reads the health of every GPU."""

    @abstractmethod
    def _figures_reader(self) -> Callable[[], Iterable[Reading]]:
        """Return what measures every GPU, which may remember the figures of its last reading."""

    # -- health (port.HealthReporter)

    def watch_health(self, notify: Callable[[], None], *, log_position: int) -> None:  # noqa: ARG002 - no Xids here
        """Begin to observe the health of the GPUs."""
        self.end_health()
        self._watch = SysfsWatch(self.vendor, self._vitals_source(), notify)

    def health(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was observed since the last call."""
        watch = self._watch
        return watch.report(is_urgent=is_urgent, patience_s=patience_s) if watch is not None else HealthReport()

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return what the PCI bus shows of GPUs."""
        return bus_states(self._roots, gpus, self.drivers) if self._watch is not None else {}

    def end_health(self) -> None:
        """Stop observing."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    # -- metering (port.Metered)

    def begin_metering(self, plan: MeterPlan) -> None:
        """Begin to measure."""
        self.end_metering()
        self._meter = SysfsMeter(self.vendor, plan, self._figures_reader())

    def meter_report(self) -> MeterReport:
        """Return the newest reading of each GPU."""
        return self._meter.report() if self._meter is not None else MeterReport()

    def end_metering(self) -> None:
        """Stop measuring."""
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.close()


# Sensors of a PCI function, from its hwmon folders.

_NUMBER = re.compile(r"-?\d{1,19}")
_CHANNEL = re.compile(r"(temp|power|energy|freq|in|fan)(\d{1,2})_(?:input|average)")
_SIGNED = ("temp", "in")
_HOTTEST = 200_000  # thousandths of a degree; the firmware has not set a limit that reads higher


@dataclass(frozen=True, slots=True)
class Sensor:
    """One channel: `kind` and `number` as in `temp2`, its label ("junction"; "" for none), its value and limit."""

    kind: str
    number: int
    label: str
    value: int
    critical: int | None = None


def read_sensors(function: Path) -> tuple[Sensor, ...]:
    """Return the channels that have a value, in the order of their folders and names."""
    folder = function / "hwmon"
    return tuple(sensor for name in entries_of(folder) for sensor in _of_folder(folder / name))


def _of_folder(folder: Path) -> Iterator[Sensor]:
    seen = set()
    for name in sorted(entries_of(folder), reverse=True):  # power1_input, the current value, before power1_average
        found = _CHANNEL.fullmatch(name)
        channel = found[1] + found[2] if found else ""
        value = read_number(folder / name) if found and channel not in seen else None
        if found and value is not None and (value >= 0 or found[1] in _SIGNED):
            seen.add(channel)
            label = (read_text(folder / f"{channel}_label") or "")[:64]
            critical = read_number(folder / f"{channel}_crit") if found[1] == "temp" else None
            is_set = critical is not None and 0 < critical < _HOTTEST
            yield Sensor(found[1], int(found[2]), label, value, critical if is_set else None)


def value_of(sensors: tuple[Sensor, ...], kind: str, *labels: str) -> int | None:
    """Return the value of the first channel of a kind with one of these labels, or None."""
    found = {sensor.label.lower(): sensor.value for sensor in reversed(sensors) if sensor.kind == kind}
    return next((found[label] for label in labels if label in found), None)


def average_power(function: Path) -> int | None:
    """Return the power drawn on average in microwatts, None where no sensor averages it."""
    folder = function / "hwmon"
    found = (read_number(folder / name / "power1_average") for name in entries_of(folder))
    return next((number for number in found if number is not None and number >= 0), None)


def margins(sensors: tuple[Sensor, ...]) -> tuple[int, ...]:
    """Return by how many degrees Celsius each temperature that has a critical limit is below it."""
    return tuple((sensor.critical - sensor.value) // 1000 for sensor in sensors if sensor.critical is not None)


def read_number(path: Path) -> int | None:
    """Return the decimal number in a file, or None."""
    text = read_text(path) or ""
    return int(text) if text.isascii() and _NUMBER.fullmatch(text) else None


# Versions of kernel drivers: as the drivers write them, and as the API accepts them.

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")


def semantic_version(text: str | None) -> str | None:
    """Return a driver's version in the form that the API accepts, or None if the driver reports none.

    Source: the versions that drivers report: none, three numbers, or four numbers (the fourth is a build).

    >>> semantic_version("6.16.13"), semantic_version("6.19.14.31400000"), semantic_version("")
    ('6.16.13', '6.19.14', None)
    """
    found = _VERSION.match(text or "")
    return ".".join(str(int(number or 0)) for number in found.groups()) if found else None
