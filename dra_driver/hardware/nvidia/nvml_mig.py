"""NVML's calls about MIG: modes, profiles, GPU and compute instances. Part of `nvml.Nvml`, which makes the calls.

In: handles and NVIDIA's ids. Out: plain values and `NvmlFault`. Each method is one library call, or one and those
needed to describe its result. What a call that changes something means, and when to make it, is the business of
`partitioning`.

Source: nvml.h and NVIDIA's NVML API reference, "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

Handle = Any  # a ctypes pointer that only the library understands
_ABSENT = frozenset(["NOT_SUPPORTED", "FUNCTION_NOT_FOUND"])
_INSTANCES_MAX = 16  # the most instances of one profile on any GPU, with room to spare
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


class NvmlFault(Exception):
    """A library call failed: which one, and the name of the error without its NVML_ERROR_ prefix."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.call = call
        self.name = name

    @property
    def is_absent(self) -> bool:
        """Return whether this GPU or this library does not have the fact at all, rather than failing to report it."""
        return self.name in _ABSENT

    @property
    def is_lost(self) -> bool:
        """Return whether the GPU has fallen off the bus."""
        return self.name == "GPU_IS_LOST"

    @property
    def requires_reset(self) -> bool:
        """Return whether the GPU can't be used before it is reset."""
        return self.name == "RESET_REQUIRED"


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """One GPU instance: NVIDIA's profile id as `nvidia-smi mig -lgip` prints it, and its placement in memory slices."""

    id: int
    profile_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """One compute instance. `device` is the MIG device or, with some drivers, only its GPU."""

    id: int
    profile_id: int
    device: Handle


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


@dataclass(frozen=True, slots=True)
class MigAttributes:
    """What the library reports about one MIG device. Slices are compute slices."""

    gi_slices: int
    ci_slices: int
    multiprocessors: int
    memory_mib: int


class MigCalls(ABC):
    """The calls about MIG."""

    _api: Any  # the module pynvml

    @abstractmethod
    def _call(self, function: str, *arguments: Any) -> Any:
        """Make one call. Raises: NvmlFault for every way in which it can fail."""

    @abstractmethod
    def _call_library(self, function: str, *arguments: Any) -> None:
        """Make one call of a library function that returns a status. Raises: NvmlFault."""

    @abstractmethod
    def _name_of(self, code: int) -> str:
        """Return the name of an error code."""

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Return whether MIG mode is on now, and whether it will be on after the next reset."""
        current, pending = self._call("nvmlDeviceGetMigMode", gpu)
        return bool(current), bool(pending)

    def mig_devices_max(self, gpu: Handle) -> int:
        """Return the highest number of MIG devices that the GPU can have."""
        return int(self._call("nvmlDeviceGetMaxMigDeviceCount", gpu))

    def mig_device(self, gpu: Handle, index: int) -> Handle | None:
        """Return the handle of the MIG device at an index, or None where there is none."""
        try:
            return self._call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
        except NvmlFault as fault:
            if fault.name in {"NOT_FOUND", "INVALID_ARGUMENT"}:
                return None
            raise

    def gi_id(self, mig: Handle) -> int:
        """Return the id of a MIG device's GPU instance."""
        return int(self._call("nvmlDeviceGetGpuInstanceId", mig))

    def ci_id(self, mig: Handle) -> int:
        """Return the id of a MIG device's compute instance within its GPU instance."""
        return int(self._call("nvmlDeviceGetComputeInstanceId", mig))

    def gpu_instance(self, gpu: Handle, gi_id: int) -> GpuInstance:
        """Return the GPU instance with an id (needs root)."""
        return self.describe(self._call("nvmlDeviceGetGpuInstanceById", gpu, gi_id))

    def describe(self, instance: Handle) -> GpuInstance:
        """Return the GPU instance behind a handle."""
        info = self._call("nvmlGpuInstanceGetInfo", instance)
        return GpuInstance(int(info.id), int(info.profileId), int(info.placement.start), int(info.placement.size))

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

    def placements(self, gpu: Handle, profile_id: int) -> tuple[tuple[int, int], ...]:
        """Return where instances of a profile may be placed: pairs of first memory slice and number of slices."""
        count = ctypes.c_uint(0)
        self._call("nvmlDeviceGetGpuInstancePossiblePlacements", gpu, profile_id, None, ctypes.byref(count))
        found = (self._api.c_nvmlGpuInstancePlacement_t * count.value)()
        if count.value:
            self._call("nvmlDeviceGetGpuInstancePossiblePlacements", gpu, profile_id, found, ctypes.byref(count))
        return tuple((int(place.start), int(place.size)) for place in found[: count.value])

    # -- changes

    def set_mig_mode(self, gpu: Handle, *, enabled: bool) -> str:
        """Set the MIG mode; return the error (less NVML_ERROR_) that keeps it from being active, "" if it is."""
        status = int(self._call("nvmlDeviceSetMigMode", gpu, int(enabled)))
        return self._name_of(status) if status else ""

    def gpu_instances(self, gpu: Handle, profile_id: int) -> tuple[Handle, ...]:
        """Return the handles of the GPU instances of one profile."""
        made = (self._api.c_nvmlGpuInstance_t * _INSTANCES_MAX)()
        count = ctypes.c_uint(_INSTANCES_MAX)
        self._call("nvmlDeviceGetGpuInstances", gpu, profile_id, made, ctypes.byref(count))
        return tuple(made[: count.value])

    def gpu_instances_left(self, gpu: Handle, profile_id: int) -> int:
        """Return how many more GPU instances of a profile fit into the GPU."""
        return int(self._call("nvmlDeviceGetGpuInstanceRemainingCapacity", gpu, profile_id))

    def create_gpu_instance(self, gpu: Handle, profile_id: int, start: int, size: int) -> Handle:
        """Create a GPU instance at exactly this placement and return its handle."""
        place = ctypes.byref(self._api.c_nvmlGpuInstancePlacement_t(start, size))
        return self._call("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, profile_id, place)

    def gpu_instance_handle(self, gpu: Handle, gi_id: int) -> Handle:
        """Return the handle of a GPU instance."""
        return self._call("nvmlDeviceGetGpuInstanceById", gpu, gi_id)

    def destroy_gpu_instance(self, instance: Handle) -> None:
        """Destroy a GPU instance that has no compute instance."""
        self._call("nvmlGpuInstanceDestroy", instance)

    def ci_profile_id(self, instance: Handle, slices: int) -> int:
        """Return the id of the compute instance profile with that number of slices.

        It is the plain profile: a few GPUs have profiles of the same size for special uses.
        """
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

    def compute_instances(self, instance: Handle, ci_profile_id: int) -> tuple[Handle, ...]:
        """Return the handles of a GPU instance's compute instances of one profile."""
        made = (self._api.c_nvmlComputeInstance_t * _INSTANCES_MAX)()
        count = ctypes.c_uint(_INSTANCES_MAX)
        self._call("nvmlGpuInstanceGetComputeInstances", instance, ci_profile_id, made, ctypes.byref(count))
        return tuple(made[: count.value])

    def compute_instances_left(self, instance: Handle, ci_profile_id: int) -> int:
        """Return how many more compute instances of a profile fit into a GPU instance."""
        return int(self._call("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", instance, ci_profile_id))

    def create_compute_instance(self, instance: Handle, ci_profile_id: int) -> Handle:
        """Create a compute instance and return its handle."""
        return self._call("nvmlGpuInstanceCreateComputeInstance", instance, ci_profile_id)

    def describe_compute_instance(self, compute: Handle) -> ComputeInstance:
        """Return the compute instance behind a handle."""
        info = self._call("nvmlComputeInstanceGetInfo", compute)
        return ComputeInstance(int(info.id), int(info.profileId), info.device)

    def compute_instance_handle(self, instance: Handle, ci_id: int) -> Handle:
        """Return the handle of a compute instance."""
        return self._call("nvmlGpuInstanceGetComputeInstanceById", instance, ci_id)

    def destroy_compute_instance(self, compute: Handle) -> None:
        """Destroy a compute instance that no process uses."""
        self._call("nvmlComputeInstanceDestroy", compute)
