"""How a GPU can be partitioned: its MIG profiles and where instances of each may be placed.

In: library calls and the GPU's memory. Out: `MigProfile`s in order of NVIDIA's id, every one that the library offers,
including those with media engines, with double memory and for graphics, which have names of their own. They are the
same for as long as the driver is loaded, so they are read once. Never guesses a placement: a profile without any is
left out.

Source: NVIDIA's rule for partitions created on demand: one compute instance of the GPU instance's full size, nothing on
a virtual GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dra_driver.hardware.facts import MigProfile
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.mig_profiles import GpuInstanceProfile
from dra_driver.hardware.nvidia.nvml.nvml import Nvml
from dra_driver.hardware.nvidia.reading.names import profile_name

_MIB = 2**20


@dataclass(slots=True)
class KnownProfiles:
    """The profiles of one GPU, kept once they could be read."""

    _uuid: str = ""
    _of_instances: dict[int, GpuInstanceProfile] = field(default_factory=dict)
    _profiles: tuple[MigProfile, ...] = ()

    def of_instances(self, nvml: Nvml, gpu: Handle, uuid: str) -> dict[int, GpuInstanceProfile]:
        """Return the GPU instance profiles by NVIDIA's id. Raises: NvmlFault when the GPU is lost."""
        if self._uuid != uuid:
            self._uuid, self._of_instances, self._profiles = uuid, {}, ()
        if not self._of_instances:
            self._of_instances = nvml.gi_profiles(gpu)
        return self._of_instances

    def read(self, nvml: Nvml, gpu: Handle, uuid: str, gpu_memory_bytes: int | None) -> tuple[MigProfile, ...]:
        """Return the profiles; none where the GPU does not report them. Raises: NvmlFault when reading them fails."""
        known = self.of_instances(nvml, gpu, uuid)
        if not self._profiles and gpu_memory_bytes and not _is_virtual(nvml, gpu):
            self._profiles = _read_profiles(nvml, gpu, known.values(), gpu_memory_bytes)
        return self._profiles


def _read_profiles(
    nvml: Nvml, gpu: Handle, known: Iterable[GpuInstanceProfile], gpu_memory_bytes: int
) -> tuple[MigProfile, ...]:
    """Read where profiles fit. Raises: NvmlFault for any failure except that the GPU has no such fact."""
    found = (_read_profile(nvml, gpu, profile, gpu_memory_bytes) for profile in known)
    return tuple(sorted((p for p in found if p is not None), key=lambda profile: profile.gi_profile_id))


def _is_virtual(nvml: Nvml, gpu: Handle) -> bool:
    try:
        return nvml.is_virtual(gpu)
    except NvmlFault as fault:
        if not fault.is_absent:
            raise
        return False


def _name_of(profile: GpuInstanceProfile, gpu_memory_bytes: int) -> str | None:
    return profile_name(
        gi_slices=profile.slices,
        ci_slices=profile.slices,
        constant=profile.constant,
        memory_mib=profile.memory_mib,
        gpu_memory_bytes=gpu_memory_bytes,
    )


def _read_profile(nvml: Nvml, gpu: Handle, profile: GpuInstanceProfile, gpu_memory_bytes: int) -> MigProfile | None:
    try:
        placements = nvml.placements(gpu, profile.profile_id)
    except NvmlFault as fault:
        if not fault.is_absent:
            raise
        return None  # older drivers report placements only while MIG mode is on
    sizes = {size for _, size in placements}
    name = _name_of(profile, gpu_memory_bytes)
    if name is None or len(sizes) != 1:
        return None
    return MigProfile(
        name=name,
        gi_profile_id=profile.profile_id,
        slices=profile.slices,
        size=sizes.pop(),
        starts=tuple(sorted(start for start, _ in placements)),
        memory_bytes=profile.memory_mib * _MIB,
        multiprocessors=profile.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpeg_engines=profile.jpeg_engines,
        ofa_engines=profile.ofa_engines,
        max_instances=profile.max_instances,
    )
