"""Health: NVML's event sets and readings, one round of vitals of a GPU, and the Xids in the kernel log.

In: handles, and the kernel's records. Out: plain values, `Vitals` and Xids. A value that this GPU or this library does
not report is None; a lost GPU has no values at all. A round takes a few library calls, most of it in one batch of field
values. A record of the kernel counts only if it begins like the driver's messages, so that the name of a process, which
the driver prints further on in its lines, is never mistaken for an Xid.

Source: nvml.h and NVIDIA's NVML API reference; the driver's own format, `NVRM: Xid (PCI:dddd:bb:dd GPU-I:nn): code`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.base.names import normal_pci_address
from dra_driver.hardware.evidence import KernelRecords, Source, Vitals, XidReport
from dra_driver.hardware.nvidia.calls import OptionalCalls
from dra_driver.hardware.nvidia.queries import MAX_LINKS, Handle, NvmlFault

XID, GPU_UNAVAILABLE, RECOVERY_CHANGED = 0x8, 0x4000, 0x8000
DOUBLE_BIT_ECC, DRAM_RETIRED, DRAM_NOT_RETIRED = 0x2, 0x400, 0x800
WANTED_EVENTS = XID | GPU_UNAVAILABLE | RECOVERY_CHANGED | DOUBLE_BIT_ECC | DRAM_RETIRED | DRAM_NOT_RETIRED
NO_INSTANCE = 0xFFFFFFFF
LINK_STATE = 165  # NVML_FI_DEV_NVLINK_GET_STATE, with the link as its scope
_UNCORRECTED, _VOLATILE, _DEVICE_MEMORY = 1, 0, 2
_GPU_SENSOR, _SLOWDOWN = 0, 1  # NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN


@dataclass(frozen=True, slots=True)
class LibraryEvent:
    """One event: its device, its type (a bit of NVML's), its data, and the instances that it is attributed to."""

    device: int
    kind: int
    data: int
    gi_id: int | None
    ci_id: int | None
    handle: Handle = None


def address_of(handle: Handle) -> int:
    """Return what identifies a handle, the same for every copy of it."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class HealthNvml(OptionalCalls):
    """The library calls of a health watch."""

    def new_event_set(self) -> Any:
        """Return a new event set."""
        return self._call("nvmlEventSetCreate")

    def free_event_set(self, events: Any) -> None:
        """Release an event set."""
        self._call("nvmlEventSetFree", events)

    def register(self, gpu: Handle, events: Any) -> bool:
        """Register for those of the wanted events that the GPU supports; return whether there are any.

        One unsupported type would make the whole call fail with nothing registered. Where the library does not report
        which types are supported, or refuses those that it reported, only Xids are registered.
        """
        mask = self._optional(lambda: int(self._call("nvmlDeviceGetSupportedEventTypes", gpu)))
        wanted = XID if mask is None else mask & WANTED_EVENTS
        return any(self._is_registered(gpu, events, kinds) for kinds in dict.fromkeys((wanted, wanted & XID)) if kinds)

    def _is_registered(self, gpu: Handle, events: Any, kinds: int) -> bool:
        return self._optional(lambda: self._call("nvmlDeviceRegisterEvents", gpu, kinds, events) or True) is not None

    def wait(self, events: Any, timeout_ms: int) -> LibraryEvent | None:
        """Return the next event, or None when none comes in time."""
        try:
            data = self._call("nvmlEventSetWait_v2", events, timeout_ms)
        except NvmlFault as fault:
            if fault.name == "TIMEOUT":
                return None
            raise
        gi, ci = (None if number == NO_INSTANCE else int(number) for number in _instances(data))
        return LibraryEvent(address_of(data.device), int(data.eventType), int(data.eventData), gi, ci, data.device)

    def is_there(self, gpu: Handle) -> bool | None:
        """Return whether the GPU itself answers; None where a call fails for another reason than its loss.

        Raises: NvmlFault when the GPU is lost.
        """
        try:
            self.memory_bytes(gpu)  # this call asks the GPU itself, so it fails if the GPU is lost
        except NvmlFault as fault:
            if fault.is_lost:
                raise
            self.requires_reset |= fault.requires_reset
            return True if fault.is_absent else None  # a GPU that shares the machine's memory has none of its own
        return True

    def ecc_uncorrectable(self, gpu: Handle) -> int | None:
        """Return the number of uncorrectable memory errors since the driver was loaded."""
        how = (gpu, _UNCORRECTED, _VOLATILE)
        total = self._optional(lambda: int(self._call("nvmlDeviceGetTotalEccErrors", *how)))
        if total is not None:
            return total
        return self._optional(lambda: int(self._call("nvmlDeviceGetMemoryErrorCounter", *how, _DEVICE_MEMORY)))

    def remapping(self, gpu: Handle) -> tuple[bool | None, bool | None]:
        """Return whether a row is to be remapped at the next reset, and whether one could not be.

        For GPUs that do not report it as field values. On GPUs older than Ampere, which retire pages, the first is
        whether one is to be retired.
        """
        rows = self._optional(lambda: self._call("nvmlDeviceGetRemappedRows", gpu))
        if rows is not None:
            return bool(rows[2]), bool(rows[3])
        return self._optional(lambda: bool(self._call("nvmlDeviceGetRetiredPagesPendingStatus", gpu))), None

    def temperature_margin(self, gpu: Handle) -> int | None:
        """Return by how many degrees the GPU is below the temperature at which it slows down, signed.

        For GPUs that report no thermal margin, such as A100.
        """
        limit = self._optional(lambda: int(self._call("nvmlDeviceGetTemperatureThreshold", gpu, _SLOWDOWN)))
        if not limit:
            return None
        now = self._optional(lambda: int(self._call("nvmlDeviceGetTemperature", gpu, _GPU_SENSOR)))
        return None if now is None else limit - now

    def sram_threshold_exceeded(self, gpu: Handle) -> bool | None:
        """Return whether the SRAM had more errors than NVIDIA allows."""
        make = getattr(self._api, "c_nvmlEccSramErrorStatus_v1_t", None)
        if make is None:
            return None
        status = make()
        done = self._optional(lambda: self._call("nvmlDeviceGetSramEccErrorStatus", gpu, ctypes.byref(status)))
        return None if done is None else bool(status.bThresholdExceeded)

    def thermal_margin(self, gpu: Handle) -> int | None:
        """Return by how many degrees the GPU is below its limit, signed."""
        return self._optional(lambda: int(self._call("nvmlDeviceGetMarginTemperature", gpu)))

    def clock_reasons(self, gpu: Handle) -> int | None:
        """Return the bit set of reasons for which the clocks are what they are."""
        found = self._optional(lambda: int(self._call("nvmlDeviceGetCurrentClocksEventReasons", gpu)))
        if found is not None:
            return found
        # As releases before 535 call it.
        return self._optional(lambda: int(self._call("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)))

    def fabric_summary(self, gpu: Handle) -> int | None:
        """Return the summary of the NVLink fabric's health: 1 healthy, 2 unhealthy, 3 limited."""
        make = getattr(self._api, "c_nvmlGpuFabricInfo_v3_t", None)
        if make is None:
            return None
        info = make()
        done = self._optional(lambda: self._call("nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(info)) or 1)
        return None if done is None else int(info.healthSummary)

    def pcie_link(self, gpu: Handle) -> tuple[int | None, int | None]:
        """Return the PCIe generation and the number of lanes that are in use now."""
        generation = self._optional(lambda: int(self._call("nvmlDeviceGetCurrPcieLinkGeneration", gpu)))
        return generation, self._optional(lambda: int(self._call("nvmlDeviceGetCurrPcieLinkWidth", gpu)))


def _instances(data: Any) -> tuple[int, int]:
    return int(data.gpuInstanceId), int(data.computeInstanceId)


# Field values of nvml.h (NVML_FI_DEV_*).
RECOVERY_ACTION, REMAP_PENDING, REMAP_FAILED = 230, 144, 145
RETIRED_PENDING = (92, 93)  # pages of GPUs older than Ampere
SLOWDOWN_MARGIN, PCIE_REPLAYS = 194, 94
GPU_RESET = 1  # NVML_GPU_RECOVERY_ACTION_GPU_RESET
FieldValues = Mapping[int | tuple[int, int], int]
_FIELDS = (RECOVERY_ACTION, REMAP_PENDING, REMAP_FAILED, *RETIRED_PENDING, SLOWDOWN_MARGIN, PCIE_REPLAYS)


@dataclass(frozen=True, slots=True)
class WatchedGpu:
    """A GPU of a watch. `links` are the NVLinks that it has, and `is_in_fabric` whether it reports a fabric."""

    handle: Handle
    address: str
    uuid: str
    links: tuple[int, ...] = ()
    is_in_fabric: bool = False


def watched_gpu(nvml: HealthNvml, handle: Handle, address: str) -> WatchedGpu:
    """Return a GPU with its properties that never change. Raises: NvmlFault if it can't be read."""
    links = []
    for link in range(MAX_LINKS):
        try:
            nvml.link_is_active(handle, link)
        except NvmlFault as fault:
            if fault.is_lost:
                raise
            if not fault.is_absent:
                break
            continue
        links.append(link)
    return WatchedGpu(handle, address, nvml.uuid(handle), tuple(links), nvml.fabric_summary(handle) is not None)


def read_vitals(nvml: HealthNvml, gpu: WatchedGpu, clock: Callable[[], float]) -> Vitals:
    """Return the GPU's vitals now."""
    try:
        return _read(nvml, gpu, clock)
    except NvmlFault as fault:
        return Vitals(gpu.address, clock(), gpu.uuid, is_lost=fault.is_lost)


def _read(nvml: HealthNvml, gpu: WatchedGpu, clock: Callable[[], float]) -> Vitals:
    handle = gpu.handle
    nvml.requires_reset = False
    links = [(LINK_STATE, link) for link in gpu.links]
    found = nvml.fields(handle, [*_FIELDS, *links])
    is_there = nvml.is_there(handle)
    states = tuple(bool(found[link]) for link in links if link in found)
    pending, failed = _remapping(nvml, handle, found)
    margin, slowdown = _heat(nvml, handle, found)
    generation, lanes = nvml.pcie_link(handle) if PCIE_REPLAYS in found else (None, None)
    return Vitals(
        gpu.address,
        clock(),
        gpu.uuid,
        is_lost=None if is_there is None else False,
        ecc_uncorrectable=nvml.ecc_uncorrectable(handle),
        sram_threshold_exceeded=nvml.sram_threshold_exceeded(handle),
        remap_pending=pending,
        remap_failed=failed,
        thermal_margin=margin,
        slowdown_margin=slowdown,
        clock_reasons=nvml.clock_reasons(handle),
        links=states if len(states) == len(links) else _link_states(nvml, gpu),
        fabric_summary=nvml.fabric_summary(handle) if gpu.is_in_fabric else None,
        pcie_replays=found.get(PCIE_REPLAYS),
        pcie_lanes=lanes,
        pcie_generation=generation,
        recovery_action=found.get(RECOVERY_ACTION)
        or (GPU_RESET if nvml.requires_reset else found.get(RECOVERY_ACTION)),
    )


def _remapping(nvml: HealthNvml, handle: Handle, found: FieldValues) -> tuple[bool | None, bool | None]:
    """Return whether memory is to be remapped or retired at the next reset, and whether that has failed."""
    pending = [found[field] for field in (REMAP_PENDING, *RETIRED_PENDING) if field in found]
    if not pending and REMAP_FAILED not in found:
        return nvml.remapping(handle)
    return any(pending) if pending else None, bool(found[REMAP_FAILED]) if REMAP_FAILED in found else None


def _heat(nvml: HealthNvml, handle: Handle, found: FieldValues) -> tuple[int | None, int | None]:
    """Return the thermal margin, and the margin below which the GPU slows down."""
    limit = found.get(SLOWDOWN_MARGIN)
    margin = nvml.thermal_margin(handle) if limit is not None else None
    if margin is None:
        margin, limit = nvml.temperature_margin(handle), 0
    return (margin, limit) if margin is not None else (None, None)


def _link_states(nvml: HealthNvml, gpu: WatchedGpu) -> tuple[bool, ...]:
    """Return the state of each link by a call of its own, for a GPU that does not report them as field values."""
    states = []
    for link in gpu.links:
        try:
            states.append(nvml.link_is_active(gpu.handle, link))
        except NvmlFault as fault:
            if fault.is_lost:
                raise
            return ()
    return tuple(states)


FALLEN_OFF_BUS = 79
REPEATED_SECONDS = 10.0  # the driver reports a loss in two lines, one of them without a code
_ADDRESS = r"(?:PCI:)?(?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \({_ADDRESS}(?: GPU-I:(?P<gi>[0-9]{{1,4}}))?(?: GPU-CI:(?P<ci>[0-9]{{1,4}}))?\): "
                  r"(?P<code>[0-9]{1,5})(?=[, ]|$)")  # fmt: skip
_OFF_BUS = re.compile(rf"NVRM: GPU (?:at )?{_ADDRESS}: GPU has fallen off the bus")
_OFF_BUS_EARLY = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}\b")
_LOADED = "NVRM: loading NVIDIA UNIX"


@dataclass(frozen=True, slots=True)
class NewLogRecords:
    """What was written to the log since it was last read. `position` is the sequence number of the last record."""

    xids: tuple[XidReport, ...] = ()
    is_driver_new: bool = False
    position: int = -1


class KernelLog:
    """A reader that continues where the last call ended; records up to `position` have been read before."""

    def __init__(self, path: Path, position: int) -> None:
        self._records = KernelRecords(path, position)
        self._lost: dict[str, float] = {}  # GPUs that have fallen off the bus, and when that was last written
        self._early: tuple[str, int] = ("", -9)  # a GPU whose message may end "fallen off the bus", and where it began

    @property
    def problem(self) -> str:
        """Return why the log can't be read, "" if it can."""
        return self._records.problem

    def new_records(self) -> NewLogRecords:
        """Return what was written since the last call; nothing where the log can't be read."""
        found: list[XidReport] = []
        is_driver_new = False
        for sequence, at, text in self._records.new():
            if text.startswith(_LOADED):
                found.clear()
                is_driver_new = True
            elif (xid := self._xid(sequence, at, text)) is not None and not self._is_repeated(xid):
                found.append(xid)
        return NewLogRecords(tuple(found), is_driver_new, self._records.position)

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _xid(self, sequence: int, at: float, text: str) -> XidReport | None:
        match = _XID.match(text)
        if match:
            gi, ci = (int(match[name]) if match[name] else None for name in ("gi", "ci"))
            return XidReport(_gpu(match["gpu"]), int(match["code"]), at, Source.KERNEL_LOG, gi, ci)
        gpu = ""
        if match := _OFF_BUS.match(text):
            gpu = match["gpu"]
        elif match := _OFF_BUS_EARLY.match(text):
            self._early = (match["gpu"], sequence)
        if self._early[0] and sequence - self._early[1] <= 2 and text.startswith("NVRM: ") and "fallen off the" in text:
            gpu, self._early = self._early[0], ("", -9)
        return XidReport(_gpu(gpu), FALLEN_OFF_BUS, at, Source.KERNEL_LOG) if gpu else None

    def _is_repeated(self, xid: XidReport) -> bool:
        """Return whether this is the second line about one loss."""
        if xid.code != FALLEN_OFF_BUS:
            return False
        before = self._lost.get(xid.gpu, float("-inf"))
        self._lost[xid.gpu] = xid.at
        return abs(xid.at - before) < REPEATED_SECONDS


def _gpu(text: str) -> str:
    return normal_pci_address(f"{text}.0")
