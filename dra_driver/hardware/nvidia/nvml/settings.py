"""NVML's calls about a GPU's settings: compute mode, persistence mode and memory limits of cgroups."""

from __future__ import annotations

from typing import Any

from dra_driver.hardware.nvidia.nvml.binding import Binding
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault

UNLIMITED = (1 << 64) - 1  # the value of NVML_DEVICE_MEMORY_LIMIT_MAX


class SettingCalls(Binding):
    """The settings that this driver reads and changes."""

    def compute_mode(self, device: Handle) -> int:
        """Return the compute mode, an NVML_COMPUTEMODE_*."""
        return int(self._call("nvmlDeviceGetComputeMode", device))

    def set_compute_mode(self, device: Handle, mode: int) -> None:
        """Set the compute mode, an NVML_COMPUTEMODE_*."""
        self._call("nvmlDeviceSetComputeMode", device, mode)

    def persistence_mode(self, gpu: Handle) -> bool:
        """Return whether the driver keeps the GPU initialised while no process uses it."""
        return bool(self._call("nvmlDeviceGetPersistenceMode", gpu))

    def set_persistence_mode(self, gpu: Handle, *, enabled: bool) -> None:
        """Switch persistence mode, which ends with the driver."""
        self._call("nvmlDeviceSetPersistenceMode", gpu, int(enabled))

    # -- memory limits of a cgroup, since release 615

    def memory_limit(self, gpu: Handle, cgroup: str) -> int:
        """Return the limit of GPU memory for the processes of a cgroup in bytes, or UNLIMITED where none is set."""
        limits = self._limits("c_nvmlGetMemoryLimits_v1_t", cgroup)
        self._call("nvmlDeviceGetMemoryLimits_v1", gpu, limits)
        return int(limits.hardLimit)

    def set_memory_limit(self, gpu: Handle, cgroup: str, limit: int) -> None:
        """Set the limit of GPU memory for the processes of a cgroup.

        No soft limit is set: it reserves memory, and the reservation outlives a cgroup in those above it.
        """
        limits = self._limits("c_nvmlSetMemoryLimits_v1_t", cgroup)
        limits.softLimit, limits.hardLimit = 0, limit
        self._call("nvmlDeviceSetMemoryLimits_v1", gpu, limits)

    def _limits(self, structure: str, cgroup: str) -> Any:
        made = getattr(self._api, structure, None)
        if made is None:
            raise NvmlFault(structure, "FUNCTION_NOT_FOUND")
        limits = made()
        limits.nameSpace = cgroup.encode()
        return limits
