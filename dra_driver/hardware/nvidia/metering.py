"""Metering: the measurements from `begin_metering` until `end_metering`, and the rounds in which they are taken.

The rounds run in the thread of the session's watch, so that the library is open only once, with at most one more user.
A report contains what is in memory: a library call that hangs makes the readings old, but delays no caller. A round
reads a GPU and its GPU instances, most of it in one batch of field values; quantities that take a call of their own are
read only where a counters file selects them. What is not reported has no value. In MIG mode the driver measures no
utilization of the GPU as a whole; the profiling counters then show that of each instance. Source: nvml.h.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dra_driver.hardware.metered import Measure, MeterPlan, MeterReport, ProcessUse, Reading
from dra_driver.hardware.nvidia.dcgm_names import MeterNvml, Profiling
from dra_driver.hardware.nvidia.mig_reading import mig_devices
from dra_driver.hardware.nvidia.queries import Handle, NvmlFault

_SM, _MEMORY = 1, 2  # NVML_CLOCK_*
_SHUTDOWN, _SLOWDOWN, _MAX_MEMORY, _MAX_GPU = range(4)  # NVML_TEMPERATURE_THRESHOLD_*
_WATTS = 0.001


class _NumberCall(NamedTuple):
    """A function, its arguments, the factor for its answer and, if the answer is a pair, which part is meant."""

    function: str
    arguments: tuple[int, ...] = ()
    scale: float = 1.0
    part: int | None = None

    def value(self, answer: Any) -> float:
        """Return the quantity that an answer contains."""
        return int(answer if self.part is None else answer[self.part]) * self.scale


_CLOCK, _LIMITS = "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetPowerManagementLimitConstraints"
_THRESHOLD = "nvmlDeviceGetTemperatureThreshold"
_CALLS: dict[str, _NumberCall] = {
    Measure.SM_CLOCK_MAX_MHZ: _NumberCall(_CLOCK, (_SM,)),
    Measure.MEMORY_CLOCK_MAX_MHZ: _NumberCall(_CLOCK, (_MEMORY,)),
    Measure.FAN_PERCENT: _NumberCall("nvmlDeviceGetFanSpeed"),
    Measure.PERFORMANCE_STATE: _NumberCall("nvmlDeviceGetPerformanceState"),
    Measure.CLOCK_REASONS: _NumberCall("nvmlDeviceGetCurrentClocksEventReasons"),
    Measure.POWER_LIMIT_W: _NumberCall("nvmlDeviceGetPowerManagementLimit", scale=_WATTS),
    Measure.POWER_LIMIT_LEAST_W: _NumberCall(_LIMITS, scale=_WATTS, part=0),
    Measure.POWER_LIMIT_MAX_W: _NumberCall(_LIMITS, scale=_WATTS, part=1),
    Measure.POWER_LIMIT_ENFORCED_W: _NumberCall("nvmlDeviceGetEnforcedPowerLimit", scale=_WATTS),
    Measure.SLOWDOWN_TEMPERATURE_C: _NumberCall(_THRESHOLD, (_SLOWDOWN,)),
    Measure.SHUTDOWN_TEMPERATURE_C: _NumberCall(_THRESHOLD, (_SHUTDOWN,)),
    Measure.GPU_TEMPERATURE_MAX_C: _NumberCall(_THRESHOLD, (_MAX_GPU,)),
    Measure.MEMORY_TEMPERATURE_MAX_C: _NumberCall(_THRESHOLD, (_MAX_MEMORY,)),
    Measure.PCIE_GENERATION: _NumberCall("nvmlDeviceGetCurrPcieLinkGeneration"),
    Measure.PCIE_LANES: _NumberCall("nvmlDeviceGetCurrPcieLinkWidth"),
}


def read_selected(nvml: MeterNvml, gpu: Handle, quantities: Iterable[str]) -> dict[str, float]:
    """Return those of the quantities that take a call and are reported. Raises: NvmlFault when the GPU is lost."""
    found = {}
    for quantity in quantities:
        call = _CALLS.get(quantity)
        answer = None if call is None else nvml.answer(call.function, gpu, *call.arguments)
        if call is not None and answer is not None:
            found[quantity] = call.value(answer)
    return found


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


class NvidiaMeter:
    """The newest readings. Any thread may call any method."""

    def __init__(self, plan: MeterPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan, self.clock = plan, clock
        self._mutex = threading.Lock()
        self._readings: dict[str, tuple[Reading, ...]] = {}
        self._xids: dict[tuple[str, int | None], Counter[int]] = {}
        self._last: dict[tuple[str, int | None], int] = {}

    def report(self) -> MeterReport:
        """Return what is known now."""
        with self._mutex:
            readings = tuple(one for reading in self._readings.values() for one in reading)
            return MeterReport(readings, {key: dict(found) for key, found in self._xids.items()}, dict(self._last))

    def take(self, address: str, readings: tuple[Reading, ...]) -> None:
        """Replace the readings of a GPU and its instances."""
        with self._mutex:
            self._readings[address] = readings

    def keep(self, addresses: Collection[str]) -> None:
        """Forget the GPUs that are no longer here."""
        with self._mutex:
            self._readings = {gpu: found for gpu, found in self._readings.items() if gpu in addresses}

    def count_xid(self, address: str, gi_id: int | None, code: int) -> None:
        """Count an Xid."""
        with self._mutex:
            self._xids.setdefault((address, gi_id), Counter())[code] += 1
            self._last[address, gi_id] = code


class MeterRounds:
    """The rounds of one session, for the one thread that makes the library calls. `gpus` are handles by PCI address."""

    def __init__(self, meter: NvidiaMeter, mark: Callable[[str], None], gpus: Mapping[str, Handle]) -> None:
        self.meter, self._gpus = meter, gpus
        self._nvml = MeterNvml(mark)
        self._profiling: Profiling | None = None
        self._profiled: frozenset[str] = frozenset()
        self._due = 0.0
        self._read_at_us = 0
        meter.keep(gpus)
        if meter.plan.with_profiling:
            self._begin_profiling()

    def run(self) -> None:
        """Read all GPUs if a round is due."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.meter.plan.beat_s
        shared, since_us = self.meter.plan.shared_gpus(), self._read_at_us
        self._read_at_us = int(time.time() * 1e6)
        for address, gpu in self._gpus.items():
            self._read(address, gpu, since_us, with_processes=address in shared)
        self.meter.plan.notify()

    def close(self) -> None:
        """Release the samples that profiling has allocated in the library."""
        if self._profiling is not None:
            self._profiling.close()

    def _begin_profiling(self) -> None:
        try:
            self._profiled = frozenset(address for address, gpu in self._gpus.items() if self._nvml.can_profile(gpu))
        except NvmlFault:  # a GPU is lost: the next session asks again
            self._profiled = frozenset()
        if self._profiled:
            self._profiling = Profiling(self._nvml)

    def _read(self, address: str, gpu: Handle, since_us: int, *, with_processes: bool) -> None:
        profiling = self._profiling if address in self._profiled else None
        try:
            found = tuple(
                read_gpu(
                    self._nvml,
                    gpu,
                    address,
                    profiling=profiling,
                    plan=self.meter.plan,
                    with_processes=with_processes,
                    since_us=since_us,
                    clock=self.meter.clock,
                )
            )
        except NvmlFault:  # it is lost: its last readings grow old
            return
        self.meter.take(address, found)
