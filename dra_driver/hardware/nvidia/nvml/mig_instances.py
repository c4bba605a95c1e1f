"""NVML's calls about MIG mode, MIG devices, GPU instances and compute instances.

What a call that changes something means, and when to make it, is the business of `partitioning`.

Source: NVIDIA's NVML API reference, "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dra_driver.hardware.nvidia.nvml.binding import Binding
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault

_MAX_INSTANCES = 16  # the most instances of one profile on any GPU, with room to spare


class GpuInstance(NamedTuple):
    """One GPU instance: NVIDIA's profile id as `nvidia-smi mig -lgip` prints it, and its placement in memory slices."""

    id: int
    profile_id: int
    start: int
    size: int


class ComputeInstance(NamedTuple):
    """One compute instance. `device` is the MIG device or, with some drivers, only its GPU."""

    id: int
    profile_id: int
    device: Handle


@dataclass(frozen=True, slots=True)
class MigAttributes:
    """What the library reports about one MIG device. Slices are compute slices."""

    gi_slices: int
    ci_slices: int
    multiprocessors: int
    memory_mib: int


class MigInstanceCalls(Binding):
    """The calls about what MIG has made of a GPU, and those that change it."""

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Return whether MIG mode is on now, and whether it will be on after the next reset."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        self._call_library("nvmlDeviceGetMigMode", gpu, ctypes.byref(current), ctypes.byref(pending))
        return bool(current.value), bool(pending.value)

    def mig_devices_max(self, gpu: Handle) -> int:
        """Return the highest number of MIG devices that the GPU can have."""
        return self._number("nvmlDeviceGetMaxMigDeviceCount", gpu)

    def mig_device(self, gpu: Handle, index: int) -> Handle | None:
        """Return the handle of the MIG device at an index, or None where there is none."""
        try:
            return self._handle(self._api.c_nvmlDevice_t, "nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
        except NvmlFault as fault:
            if fault.name in {"NOT_FOUND", "INVALID_ARGUMENT"}:
                return None
            raise

    def gi_id(self, mig: Handle) -> int:
        """Return the id of a MIG device's GPU instance."""
        return self._number("nvmlDeviceGetGpuInstanceId", mig)

    def ci_id(self, mig: Handle) -> int:
        """Return the id of a MIG device's compute instance within its GPU instance."""
        return self._number("nvmlDeviceGetComputeInstanceId", mig)

    def gpu_instance(self, gpu: Handle, gi_id: int) -> GpuInstance:
        """Return the GPU instance with an id (needs root)."""
        return self.describe(self.gpu_instance_handle(gpu, gi_id))

    def describe(self, instance: Handle) -> GpuInstance:
        """Return the GPU instance behind a handle."""
        info = self._api.c_nvmlGpuInstanceInfo_t()
        self._call_library("nvmlGpuInstanceGetInfo", instance, ctypes.byref(info))
        place = info.placement
        return GpuInstance(info.id, info.profileId, place.start, place.size)

    def mig_attributes(self, mig: Handle) -> MigAttributes:
        """Return the attributes of a MIG device."""
        info = self._call("nvmlDeviceGetAttributes", mig)
        return MigAttributes(
            int(info.gpuInstanceSliceCount),
            int(info.computeInstanceSliceCount),
            int(info.multiprocessorCount),
            int(info.memorySizeMB),
        )

    def is_virtual(self, gpu: Handle) -> bool:
        """Return whether this is a vGPU inside a virtual machine."""
        return int(self._call("nvmlDeviceGetVirtualizationMode", gpu)) == int(
            self._api.NVML_GPU_VIRTUALIZATION_MODE_VGPU
        )

    def _handle(self, kind: Callable[[], Handle], function: str, *arguments: Any) -> Handle:
        """Return the handle that a library function finds or makes."""
        handle = kind()
        self._call_library(function, *arguments, ctypes.byref(handle))
        return handle

    def _number(self, function: str, *arguments: Any) -> int:
        """Return the number that a library function finds."""
        found = ctypes.c_uint()
        self._call_library(function, *arguments, ctypes.byref(found))
        return found.value

    # -- changes

    def set_mig_mode(self, gpu: Handle, *, enabled: bool) -> str:
        """Set the MIG mode; return the error, without NVML_ERROR_, that keeps it from taking effect; "" if none."""
        status = self._number("nvmlDeviceSetMigMode", gpu, int(enabled))
        return self._name_of(status) if status else ""

    def gpu_instances(self, gpu: Handle, profile_id: int) -> tuple[Handle, ...]:
        """Return the handles of the GPU instances of one profile."""
        made = (self._api.c_nvmlGpuInstance_t * _MAX_INSTANCES)()
        count = ctypes.c_uint(_MAX_INSTANCES)
        self._call("nvmlDeviceGetGpuInstances", gpu, profile_id, made, ctypes.byref(count))
        return tuple(made[: count.value])

    def gpu_instances_left(self, gpu: Handle, profile_id: int) -> int:
        """Return how many more GPU instances of a profile fit into the GPU."""
        return self._number("nvmlDeviceGetGpuInstanceRemainingCapacity", gpu, profile_id)

    def create_gpu_instance(self, gpu: Handle, profile_id: int, start: int, size: int) -> Handle:
        """Create a GPU instance at exactly this placement and return its handle."""
        place = ctypes.byref(self._api.c_nvmlGpuInstancePlacement_t(start, size))
        kind = self._api.c_nvmlGpuInstance_t
        return self._handle(kind, "nvmlDeviceCreateGpuInstanceWithPlacement", gpu, profile_id, place)

    def gpu_instance_handle(self, gpu: Handle, gi_id: int) -> Handle:
        """Return the handle of a GPU instance."""
        return self._handle(self._api.c_nvmlGpuInstance_t, "nvmlDeviceGetGpuInstanceById", gpu, gi_id)

    def destroy_gpu_instance(self, instance: Handle) -> None:
        """Destroy a GPU instance that has no compute instance."""
        self._call_library("nvmlGpuInstanceDestroy", instance)

    def compute_instances(self, instance: Handle, ci_profile_id: int) -> tuple[Handle, ...]:
        """Return the handles of a GPU instance's compute instances of one profile."""
        made = (self._api.c_nvmlComputeInstance_t * _MAX_INSTANCES)()
        count = ctypes.c_uint(_MAX_INSTANCES)
        self._call("nvmlGpuInstanceGetComputeInstances", instance, ci_profile_id, made, ctypes.byref(count))
        return tuple(made[: count.value])

    def compute_instances_left(self, instance: Handle, ci_profile_id: int) -> int:
        """Return how many more compute instances of a profile fit into a GPU instance."""
        return self._number("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", instance, ci_profile_id)

    def create_compute_instance(self, instance: Handle, ci_profile_id: int) -> Handle:
        """Create a compute instance and return its handle."""
        kind = self._api.c_nvmlComputeInstance_t
        return self._handle(kind, "nvmlGpuInstanceCreateComputeInstance", instance, ci_profile_id)

    def describe_compute_instance(self, compute: Handle) -> ComputeInstance:
        """Return the compute instance behind a handle."""
        info = self._api.c_nvmlComputeInstanceInfo_t()
        self._call_library("nvmlComputeInstanceGetInfo_v2", compute, ctypes.byref(info))
        return ComputeInstance(info.id, info.profileId, info.device)

    def compute_instance_handle(self, instance: Handle, ci_id: int) -> Handle:
        """Return the handle of a compute instance."""
        kind = self._api.c_nvmlComputeInstance_t
        return self._handle(kind, "nvmlGpuInstanceGetComputeInstanceById", instance, ci_id)

    def destroy_compute_instance(self, compute: Handle) -> None:
        """Destroy a compute instance that no process uses."""
        self._call_library("nvmlComputeInstanceDestroy", compute)
