"""All calls of the library in one object: MIG's calls, and the calls that may fail.

What a call that changes something means, and when to make it, is the business of `partitioning`. `OptionalCalls` is
used only where health or measurements are observed: there, a failure means no more than that this GPU, or this library,
does not report a value.

Source: nvml.h and NVIDIA's NVML API reference, "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from dra_driver.hardware.nvidia.queries import Binding, GpuQueries, Handle, LinkQueries, NvmlFault, SettingCalls

_CI_PROFILE_OF_SLICES = {1: 0, 2: 1, 3: 2, 4: 3, 6: 6, 7: 4, 8: 5}  # slices -> NVML_COMPUTE_INSTANCE_PROFILE_*
_PROFILE_INFO_VERSIONS = (1, 2, 3)
_OWN_VERSION = 3
_OTHER_VERSION = frozenset(["FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "NOT_SUPPORTED"])
_COUNTS = ("multiprocessorCount", "copyEngineCount", "decoderCount", "encoderCount", "jpegCount", "ofaCount")


class _GiProfileV3(ctypes.Structure):
    """The library's structure nvmlGpuInstanceProfileInfo_v3_t."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("version", "id", "sliceCount", "instanceCount", *_COUNTS)),
        ("memorySizeMB", ctypes.c_ulonglong),
        ("name", ctypes.c_char * 96),
        ("capabilities", ctypes.c_uint),
    ]


class _CiProfileV3(ctypes.Structure):
    """The library's structure nvmlComputeInstanceProfileInfo_v3_t."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("version", "id", "sliceCount", "instanceCount", *_COUNTS)),
        ("name", ctypes.c_char * 96),
        ("capabilities", ctypes.c_uint),
    ]


@dataclass(frozen=True, slots=True)
class GpuInstanceProfile:
    """What a GPU instance of one profile has.

    `constant` is its NVML_GPU_INSTANCE_PROFILE_*, `profile_id` NVIDIA's id.
    """

    constant: int
    profile_id: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    memory_mib: int
    slices: int  # number of compute slices
    max_instances: int


class MigProfileQueries(Binding):
    """What the library reports about MIG profiles."""

    def __init__(self, mark: Callable[[str], None]) -> None:
        super().__init__(mark)
        # By the profile of a GPU instance, and slices. As long as the library is open, the GPU at an index is the same
        # and has the same profiles.
        self._ci_profile_ids: dict[tuple[int, int], int] = {}

    def gi_profiles(self, gpu: Handle) -> dict[int, GpuInstanceProfile]:
        """Return the GPU instance profiles that the GPU offers, by NVIDIA's id.

        They are read with the first version of the call that returns any: old libraries have the first version, and new
        ones may drop it.
        """
        for version in _PROFILE_INFO_VERSIONS:
            if profiles := self._gi_profiles(gpu, version):
                return profiles
        return {}

    def _gi_profiles(self, gpu: Handle, version: int) -> dict[int, GpuInstanceProfile]:
        profiles: dict[int, GpuInstanceProfile] = {}
        for constant in range(int(self._api.NVML_GPU_INSTANCE_PROFILE_COUNT)):
            try:
                info = self._profile_info("nvmlDeviceGetGpuInstanceProfileInfo", version, gpu, constant)
            except NvmlFault as fault:
                if fault.is_lost:
                    raise
                continue
            profile = GpuInstanceProfile(
                constant,
                int(info.id),
                int(info.multiprocessorCount),
                int(info.copyEngineCount),
                int(info.decoderCount),
                int(info.encoderCount),
                int(info.jpegCount),
                int(info.ofaCount),
                int(info.memorySizeMB),
                int(info.sliceCount),
                int(info.instanceCount),
            )
            profiles.setdefault(profile.profile_id, profile)
        return profiles

    def _profile_info(self, function: str, version: int, *arguments: Any) -> Any:
        """Read a profile with one version of the call; the bindings lack the third version."""
        if version < _OWN_VERSION:
            return self._call(function, *arguments, version)
        info = _GiProfileV3() if "Device" in function else _CiProfileV3()
        info.version = ctypes.sizeof(info) | _OWN_VERSION << 24
        self._call_library(f"{function}V", *arguments, ctypes.byref(info))
        return info

    def ci_profile_id(self, instance: Handle, gi_profile_id: int, slices: int) -> int:
        """Return the id of the compute instance profile with that number of slices in a GPU instance of a profile.

        It is the plain profile: a few GPUs have profiles of the same size for special uses. It is read once, so only a
        worker of a single GPU may ask.
        """
        known = self._ci_profile_ids.get((gi_profile_id, slices))
        if known is None:
            known = self._ci_profile_ids[gi_profile_id, slices] = self._read_ci_profile_id(instance, slices)
        return known

    def _read_ci_profile_id(self, instance: Handle, slices: int) -> int:
        constant = _CI_PROFILE_OF_SLICES.get(slices)
        if constant is None:
            raise NvmlFault("nvmlGpuInstanceGetComputeInstanceProfileInfo", f"no profile with {slices} slices is known")
        shared = self._api.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        fault: NvmlFault | None = None
        for version in _PROFILE_INFO_VERSIONS:
            try:
                name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
                return int(self._profile_info(name, version, instance, constant, shared).id)
            except NvmlFault as refusal:
                if refusal.name not in _OTHER_VERSION:
                    raise
                fault = fault or refusal
        raise fault or NvmlFault("nvmlGpuInstanceGetComputeInstanceProfileInfo", "FUNCTION_NOT_FOUND")

    def placements(self, gpu: Handle, profile_id: int) -> tuple[tuple[int, int], ...]:
        """Return where instances of a profile may be placed: pairs of first memory slice and number of slices."""
        count = ctypes.c_uint(0)
        self._call("nvmlDeviceGetGpuInstancePossiblePlacements", gpu, profile_id, None, ctypes.byref(count))
        found = (self._api.c_nvmlGpuInstancePlacement_t * count.value)()
        if count.value:
            self._call("nvmlDeviceGetGpuInstancePossiblePlacements", gpu, profile_id, found, ctypes.byref(count))
        return tuple((int(place.start), int(place.size)) for place in found[: count.value])


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


class Nvml(GpuQueries, LinkQueries, SettingCalls, MigProfileQueries, MigInstanceCalls):
    """The library calls that this driver makes. Each worker has one object; all share the loaded library."""


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
