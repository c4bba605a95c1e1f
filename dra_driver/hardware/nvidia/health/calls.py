"""NVML's calls about health: event sets and readings. Imported only where health is watched.

In: handles. Out: plain values, None where this GPU or this library does not report one. Each method is one library
call. Source: nvml.h and NVIDIA's NVML API reference.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.optional_calls import OptionalCalls

XID, GPU_UNAVAILABLE, RECOVERY_ACTION = 0x8, 0x4000, 0x8000
DOUBLE_BIT_ECC, DRAM_RETIRED, DRAM_NOT_RETIRED = 0x2, 0x400, 0x800
WANTED_EVENTS = XID | GPU_UNAVAILABLE | RECOVERY_ACTION | DOUBLE_BIT_ECC | DRAM_RETIRED | DRAM_NOT_RETIRED
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
