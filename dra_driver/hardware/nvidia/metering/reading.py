"""Reading: one round of measurements of one GPU, most of them in one batch of field values.

In: a handle. Out: the readings of the GPU and of its GPU instances. What is not reported has no value. In MIG mode the
driver measures no utilization of the GPU as a whole; the profiling counters then show that of each instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dra_driver.hardware.metered import Measure, MeterPlan, ProcessUse, Reading
from dra_driver.hardware.nvidia.metering.calls import MeterNvml
from dra_driver.hardware.nvidia.metering.profiling import Profiling
from dra_driver.hardware.nvidia.metering.selected import read_selected
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.reading.partitions import mig_devices

ALL_LINKS = 0xFFFFFFFF  # the scope of a field that stands for the sum of all links
_SENT, _RECEIVED = (138, ALL_LINKS), (139, ALL_LINKS)  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB
_POWER_AVERAGE, _POWER_NOW = 185, 186
_FIELDS: dict[int, Measure] = {  # NVML_FI_DEV_*
    82: Measure.MEMORY_TEMPERATURE_C,
    83: Measure.ENERGY_MJ_TOTAL,
    94: Measure.PCIE_REPLAYS_TOTAL,
    142: Measure.REMAPPED_CORRECTABLE_TOTAL,
    143: Measure.REMAPPED_UNCORRECTABLE_TOTAL,
    145: Measure.REMAP_FAILED,
    74: Measure.POWER_VIOLATION_NS_TOTAL,
    75: Measure.THERMAL_VIOLATION_NS_TOTAL,
    76: Measure.SYNC_BOOST_VIOLATION_NS_TOTAL,
    77: Measure.BOARD_LIMIT_VIOLATION_NS_TOTAL,
    78: Measure.LOW_UTILIZATION_VIOLATION_NS_TOTAL,
    79: Measure.RELIABILITY_VIOLATION_NS_TOTAL,
    3: Measure.ECC_SINGLE_VOLATILE_TOTAL,
    4: Measure.ECC_DOUBLE_VOLATILE_TOTAL,
    5: Measure.ECC_SINGLE_LIFETIME_TOTAL,
    6: Measure.ECC_DOUBLE_LIFETIME_TOTAL,
    29: Measure.RETIRED_SINGLE_TOTAL,
    30: Measure.RETIRED_DOUBLE_TOTAL,
    31: Measure.RETIRED_PENDING,
    38: Measure.NVLINK_FLIT_CRC_TOTAL,
    45: Measure.NVLINK_DATA_CRC_TOTAL,
    52: Measure.NVLINK_REPLAYS_TOTAL,
    59: Measure.NVLINK_RECOVERIES_TOTAL,
}
_WANTED: tuple[int | tuple[int, int], ...] = (*_FIELDS, _POWER_AVERAGE, _POWER_NOW, _SENT, _RECEIVED)


def read_gpu(
    nvml: MeterNvml,
    gpu: Handle,
    address: str,
    *,
    profiling: Profiling | None,
    plan: MeterPlan,
    with_processes: bool,
    since_us: int,
    clock: Callable[[], float],
) -> Iterator[Reading]:
    """Yield the reading of a GPU, and those of its GPU instances. Raises: NvmlFault when the GPU is lost."""
    values = {**_batch(nvml, gpu), **_single(nvml, gpu), **_memory(nvml, gpu)}
    values |= read_selected(nvml, gpu, plan.selected)
    if profiling is not None:
        values |= profiling.read(gpu, address, None)
    is_divided = _is_divided(nvml, gpu)
    processes = _processes(nvml, gpu, since_us) if with_processes and not is_divided else None
    yield Reading(address, clock(), values, processes=processes)
    instances = dict(_instances(nvml, gpu)) if is_divided else {}
    if profiling is not None:
        profiling.keep(address, {None, *instances})
    for gi_id, device in instances.items():
        found = _memory(nvml, device)
        if profiling is not None:
            found |= profiling.read(gpu, address, gi_id)
        uses = nvml.process_uses(device) if with_processes else None
        yield Reading(address, clock(), found, gi_id, uses)


def _batch(nvml: MeterNvml, gpu: Handle) -> dict[str, float]:
    found = nvml.fields(gpu, _WANTED)
    values: dict[str, float] = {_FIELDS[key]: float(found[key]) for key in _FIELDS if key in found}
    power = found.get(_POWER_AVERAGE, found.get(_POWER_NOW))
    if power is None:
        power = nvml.power_mw(gpu)
    if power is not None:
        values[Measure.POWER_W] = power / 1000
    if _SENT in found and _RECEIVED in found:
        values[Measure.NVLINK_KIB_TOTAL] = float(found[_SENT] + found[_RECEIVED])
    return values


def _single(nvml: MeterNvml, gpu: Handle) -> dict[str, float]:
    """Return what takes a call for each value."""
    rates = nvml.utilization(gpu)
    found = {
        Measure.SM_CLOCK_MHZ: nvml.clock_mhz(gpu, is_memory=False),
        Measure.MEMORY_CLOCK_MHZ: nvml.clock_mhz(gpu, is_memory=True),
        Measure.TEMPERATURE_C: nvml.temperature_c(gpu),
        Measure.GPU_PERCENT: rates[0] if rates else None,
        Measure.MEMORY_COPY_PERCENT: rates[1] if rates else None,
        Measure.ENCODER_PERCENT: nvml.coder_percent(gpu, is_decoder=False),
        Measure.DECODER_PERCENT: nvml.coder_percent(gpu, is_decoder=True),
    }
    return {quantity: float(value) for quantity, value in found.items() if value is not None}


def _memory(nvml: MeterNvml, device: Handle) -> dict[str, float]:
    memory = nvml.memory(device)
    if memory is None:
        return {}
    total, free, used, reserved = memory
    values: dict[str, float] = {
        Measure.MEMORY_TOTAL_BYTES: float(total),
        Measure.MEMORY_FREE_BYTES: float(free),
        Measure.MEMORY_USED_BYTES: float(used),
    }
    if total > (reserved or 0):
        values[Measure.MEMORY_USED_RATIO] = used / (total - (reserved or 0))
    return values if reserved is None else {**values, Measure.MEMORY_RESERVED_BYTES: float(reserved)}


def _is_divided(nvml: MeterNvml, gpu: Handle) -> bool:
    try:
        return nvml.mig_mode(gpu)[0]
    except NvmlFault as fault:
        if fault.is_lost:
            raise
        return False


def _instances(nvml: MeterNvml, gpu: Handle) -> Iterator[tuple[int, Handle]]:
    """Yield the id of each GPU instance with a MIG device of it; memory and counters are those of the instance."""
    try:
        for _, device in mig_devices(nvml, gpu):
            yield nvml.gi_id(device), device
    except NvmlFault as fault:  # an instance was destroyed meanwhile: the next round shows what is left
        if fault.is_lost:
            raise


def _processes(nvml: MeterNvml, gpu: Handle, since_us: int) -> tuple[ProcessUse, ...] | None:
    uses = nvml.process_uses(gpu)
    if uses is None:
        return None
    percents = nvml.process_percents(gpu, since_us)
    return tuple(
        ProcessUse(use.pid, use.memory_bytes, percents.get(use.pid, 0.0 if percents else None)) for use in uses
    )
