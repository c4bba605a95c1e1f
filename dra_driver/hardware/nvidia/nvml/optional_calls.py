"""Library calls whose failure means no more than that this GPU, or this library, does not report a value.

Imported only where health or measurements are observed. Source: nvml.h and NVIDIA's NVML API reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.nvml import Nvml

T = TypeVar("T")

_SIGNED = (4, 5)  # NVML_VALUE_TYPE_SIGNED_LONG_LONG and _SIGNED_INT
_DOUBLE = 0  # NVML_VALUE_TYPE_DOUBLE


class OptionalCalls(Nvml):
    """The library with calls that may fail, and with field values, which a GPU reports as far as it has them.

    `requires_reset` is set when an optional call failed because the GPU can't be used before a reset; the caller
    clears it before it reads a GPU.
    """

    requires_reset = False

    def fields(self, gpu: Handle, wanted: Sequence[int | tuple[int, int]]) -> dict[int | tuple[int, int], int]:
        """Return those of the wanted field values that the GPU reports; a pair is a field and its scope."""
        values = self._optional(lambda: self._call("nvmlDeviceGetFieldValues", gpu, list(wanted)))
        found = {}
        for asked, value in zip(wanted, values or (), strict=False):
            if not value.nvmlReturn and (number := _number(value)) is not None:
                found[asked] = number
        return found

    def _optional(self, read: Callable[[], T]) -> T | None:
        """Return what a call returns, or None where it fails. Raises: NvmlFault when the GPU is lost."""
        try:
            return read()
        except NvmlFault as fault:
            if fault.is_lost:
                raise
            self.requires_reset |= fault.requires_reset
            return None


def _number(value: Any) -> int | None:
    """Return a field's value as a whole number; None for one that is not finite (NVML_VALUE_TYPE_*)."""
    if value.valueType == _DOUBLE:
        return int(value.value.dVal) if math.isfinite(value.value.dVal) else None
    if value.valueType in _SIGNED:
        return int(value.value.siVal if value.valueType == _SIGNED[1] else value.value.sllVal)
    # An unsigned int leaves the upper half unset.
    return int(value.value.ullVal) & ((1 << 32) - 1 if value.valueType == 1 else (1 << 64) - 1)
