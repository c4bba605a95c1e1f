"""NVML's calls about MIG: modes, profiles, GPU and compute instances. Part of `nvml.Nvml`, which makes the calls.

In: handles and NVIDIA's ids. Out: plain values and `NvmlFault`. Each method is one library call, or one and what it
takes to describe the result. What a call that changes something means, and when, is for `partitioning` to know.

Source: nvml.h and NVIDIA's NVML API reference, "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

Handle = Any  # a ctypes pointer that only the library understands
_ABSENT = frozenset(["NOT_SUPPORTED", "FUNCTION_NOT_FOUND"])
_INSTANCES_MAX = 16  # of one profile, on any GPU, with room to spare
_CI_PROFILE_OF_SLICES = {1: 0, 2: 1, 3: 2, 4: 3, 6: 6, 7: 4, 8: 5}  # slices -> NVML_COMPUTE_INSTANCE_PROFILE_*


_PROFILE_INFO_VERSIONS = (1, 2, 3)
_OWN_VERSION = 3
_OTHER_VERSION = frozenset(["FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "NOT_SUPPORTED"])
_COUNTS = ("multiprocessorCount", "copyEngineCount", "decoderCount", "encoderCount", "jpegCount", "ofaCount")


class _GiProfileV3(ctypes.Structure):
    """nvmlGpuInstanceProfileInfo_v3_t."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("version", "id", "sliceCount", "instanceCount", *_COUNTS)),
        ("memorySizeMB", ctypes.c_ulonglong),
        ("name", ctypes.c_char * 96),
        ("capabilities", ctypes.c_uint),
    ]


class _CiProfileV3(ctypes.Structure):
    """nvmlComputeInstanceProfileInfo_v3_t."""

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
        """Return whether this GPU or this library has no such fact, as against failing to give it."""
        return self.name in _ABSENT

    @property
    def is_lost(self) -> bool:
        """Return whether the GPU has fallen off the bus."""
        return self.name == "GPU_IS_LOST"


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """One GPU instance: NVIDIA's profile id as `nvidia-smi mig -lgip` prints it, placement in memory slices."""

    id: int
    profile_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class GpuInstanceProfile:
    """What a GPU instance of one profile has. `constant` is NVML_GPU_INSTANCE_PROFILE_*, `profile_id` NVIDIA's id."""

    constant: int
    profile_id: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    memory_mib: int
    slices: int  # compute slices
    max_instances: int


@dataclass(frozen=True, slots=True)
class MigAttributes:
    """What the library says of one MIG device. Slices are compute slices."""

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
        """Make one call of a library function that gives a status. Raises: NvmlFault."""

    @abstractmethod
    def _name_of(self, code: int) -> str:
        """Return the name of an error code."""

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Say whether MIG mode is on now, and whether it will be after the next reset."""
        current, pending = self._call("nvmlDeviceGetMigMode", gpu)
        return bool(current), bool(pending)

    def mig_devices_max(self, gpu: Handle) -> int:
        """Return the highest number of MIG devices that the GPU can have."""
        return int(self._call("nvmlDeviceGetMaxMigDeviceCount", gpu))

    def mig_device(self, gpu: Handle, index: int) -> Handle | None:
        """Return the handle of the MIG device at an index; None where there is none."""
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
        """Describe a GPU instance (needs root)."""
        return self.describe(self._call("nvmlDeviceGetGpuInstanceById", gpu, gi_id))

    def describe(self, instance: Handle) -> GpuInstance:
        """Describe a GPU instance of which there is a handle."""
        info = self._call("nvmlGpuInstanceGetInfo", instance)
        return GpuInstance(int(info.id), int(info.profileId), int(info.placement.start), int(info.placement.size))

    def gi_profiles(self, gpu: Handle) -> dict[int, GpuInstanceProfile]:
        """List the GPU instance profiles that the GPU offers, by NVIDIA's id.

        Asked by the first version of the call that knows any: old libraries have the first, new ones may drop it.
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
        """Ask for a profile by one version of a call; the third is one that the bindings do not have."""
        if version < _OWN_VERSION:
            return self._call(function, *arguments, version)
        info = _GiProfileV3() if "Device" in function else _CiProfileV3()
        info.version = ctypes.sizeof(info) | _OWN_VERSION << 24
        self._call_library(f"{function}V", *arguments, ctypes.byref(info))
        return info

    def mig_attributes(self, mig: Handle) -> MigAttributes:
        """Describe a MIG device."""
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
        """List where instances of a profile may be placed: first memory slice and how many."""
        count = ctypes.c_uint(0)
        self._call("nvmlDeviceGetGpuInstancePossiblePlacements", gpu, profile_id, None, ctypes.byref(count))
        found = (self._api.c_nvmlGpuInstancePlacement_t * count.value)()
        if count.value:
            self._call("nvmlDeviceGetGpuInstancePossiblePlacements", gpu, profile_id, found, ctypes.byref(count))
        return tuple((int(place.start), int(place.size)) for place in found[: count.value])

    # -- changes

    def set_mig_mode(self, gpu: Handle, *, enabled: bool) -> str:
        """Ask for a MIG mode; give the error (less NVML_ERROR_) that keeps it from being active, "" when it is."""
        status = int(self._call("nvmlDeviceSetMigMode", gpu, int(enabled)))
        return self._name_of(status) if status else ""

    def gpu_instances(self, gpu: Handle, profile_id: int) -> tuple[Handle, ...]:
        """List handles of the GPU instances of one profile."""
        made = (self._api.c_nvmlGpuInstance_t * _INSTANCES_MAX)()
        count = ctypes.c_uint(_INSTANCES_MAX)
        self._call("nvmlDeviceGetGpuInstances", gpu, profile_id, made, ctypes.byref(count))
        return tuple(made[: count.value])

    def create_gpu_instance(self, gpu: Handle, profile_id: int, start: int, size: int) -> Handle:
        """Make a GPU instance at exactly this placement."""
        place = ctypes.byref(self._api.c_nvmlGpuInstancePlacement_t(start, size))
        return self._call("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, profile_id, place)

    def gpu_instance_handle(self, gpu: Handle, gi_id: int) -> Handle:
        """Return the handle of a GPU instance."""
        return self._call("nvmlDeviceGetGpuInstanceById", gpu, gi_id)

    def destroy_gpu_instance(self, instance: Handle) -> None:
        """Destroy a GPU instance that has no compute instance."""
        self._call("nvmlGpuInstanceDestroy", instance)

    def ci_profile_id(self, instance: Handle, slices: int) -> int:
        """Return the id of the compute instance profile of so many slices.

        The plain one: profiles of the same size for special uses exist on few GPUs.
        """
        constant = _CI_PROFILE_OF_SLICES.get(slices)
        if constant is None:
            raise NvmlFault("nvmlGpuInstanceGetComputeInstanceProfileInfo", f"no profile of {slices} slices is known")
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
        """List handles of a GPU instance's compute instances of one profile."""
        made = (self._api.c_nvmlComputeInstance_t * _INSTANCES_MAX)()
        count = ctypes.c_uint(_INSTANCES_MAX)
        self._call("nvmlGpuInstanceGetComputeInstances", instance, ci_profile_id, made, ctypes.byref(count))
        return tuple(made[: count.value])

    def compute_instances_left(self, instance: Handle, ci_profile_id: int) -> int:
        """Return how many more compute instances of a profile fit into a GPU instance."""
        return int(self._call("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", instance, ci_profile_id))

    def create_compute_instance(self, instance: Handle, ci_profile_id: int) -> Handle:
        """Make a compute instance."""
        return self._call("nvmlGpuInstanceCreateComputeInstance", instance, ci_profile_id)

    def describe_compute_instance(self, compute: Handle) -> tuple[int, Handle]:
        """Return a compute instance's id, and what the library calls its device: the MIG device, or only its GPU."""
        info = self._call("nvmlComputeInstanceGetInfo", compute)
        return int(info.id), info.device

    def compute_instance_handle(self, instance: Handle, ci_id: int) -> Handle:
        """Return the handle of a compute instance."""
        return self._call("nvmlGpuInstanceGetComputeInstanceById", instance, ci_id)

    def destroy_compute_instance(self, compute: Handle) -> None:
        """Destroy a compute instance that nobody uses."""
        self._call("nvmlComputeInstanceDestroy", compute)
