"""Vitals: one round of readings of one GPU, in a few library calls, most of them in one batch of field values.

In: a handle. Out: `Vitals`. A value that the GPU does not report is None; a lost GPU has no values at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.hardware.evidence import Vitals
from dra_driver.hardware.nvidia.health.calls import LINK_STATE, HealthNvml
from dra_driver.hardware.nvidia.nvml import MAX_LINKS
from dra_driver.hardware.nvidia.nvml_mig import Handle, NvmlFault

# Field values of nvml.h (NVML_FI_DEV_*).
RECOVERY_ACTION, REMAP_PENDING, REMAP_FAILED = 230, 144, 145
RETIRED_PENDING = (92, 93)  # pages of GPUs older than Ampere
SLOWDOWN_MARGIN, PCIE_REPLAYS = 194, 94
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
    """Return a GPU with what never changes about it. Raises: NvmlFault where it can't be read."""
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
    links = [(LINK_STATE, link) for link in gpu.links]
    found = nvml.fields(handle, [*_FIELDS, *links])
    nvml.memory_bytes(handle)  # this call asks the GPU itself, so it fails if the GPU is lost
    states = tuple(bool(found[link]) for link in links if link in found)
    pending = [found[field] for field in (REMAP_PENDING, *RETIRED_PENDING) if field in found]
    generation, lanes = nvml.pcie_link(handle) if PCIE_REPLAYS in found else (None, None)
    return Vitals(
        gpu.address,
        clock(),
        gpu.uuid,
        recovery_action=found.get(RECOVERY_ACTION),
        ecc_uncorrectable=nvml.ecc_uncorrectable(handle),
        sram_threshold_exceeded=nvml.sram_threshold_exceeded(handle),
        remap_pending=any(pending) if pending else None,
        remap_failed=bool(found[REMAP_FAILED]) if REMAP_FAILED in found else None,
        thermal_margin=nvml.thermal_margin(handle) if SLOWDOWN_MARGIN in found else None,
        slowdown_margin=found.get(SLOWDOWN_MARGIN),
        clock_reasons=nvml.clock_reasons(handle),
        links=states if len(states) == len(links) else _link_states(nvml, gpu),
        fabric_summary=nvml.fabric_summary(handle) if gpu.is_in_fabric else None,
        pcie_replays=found.get(PCIE_REPLAYS),
        pcie_lanes=lanes,
        pcie_generation=generation,
    )


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
