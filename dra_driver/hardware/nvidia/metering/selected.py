"""Selected: quantities that take a call of their own, and are read only where a counters file selects them.

In: a handle, quantities. Out: values; nothing for one that the GPU does not report. Source: nvml.h.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dra_driver.hardware.metered import Measure
from dra_driver.hardware.nvidia.metering.calls import MeterNvml
from dra_driver.hardware.nvidia.nvml.fault import Handle

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
