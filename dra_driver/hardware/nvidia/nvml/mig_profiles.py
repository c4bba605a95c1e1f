"""NVML's queries about MIG profiles: what instances of each have, and where they may be placed.

Source: NVIDIA's NVML API reference, "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.hardware.nvidia.nvml.binding import Binding
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault

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
