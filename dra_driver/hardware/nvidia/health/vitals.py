"""Vitals: one round of readings of one GPU, in a few library calls, most of them in one batch of field values.

In: a handle. Out: `Vitals`. A value that the GPU does not report is None; a lost GPU has no values at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dra_driver.hardware.evidence import Vitals
from dra_driver.hardware.nvidia.health.calls import LINK_STATE, HealthNvml
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.links import MAX_LINKS

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
