"""MIG: the profiles of a GPU, where they may be placed, the devices that are there now, and their names.

In: library calls and the GPU's memory. Out: `MigProfile`s in order of NVIDIA's id, every one that the library offers,
including those with media engines, with double memory and for graphics, which have names of their own; they are the
same for as long as the driver is loaded, so they are read once. Never guesses a placement: a profile without any is
left out. And `PartitionFacts` in order of placement, the other instances on the GPU, and problems. A MIG device is left
out with a problem if anything that names or sizes it can't be read, but its place still counts as taken. Never creates
or destroys an instance: `partitioning` does that.

Claims written for NVIDIA's driver compare with the names, so they are that driver's and not those of nvml.h.
Source: NVIDIA's rule for partitions created on demand: one compute instance of the GPU instance's full size, nothing on
a virtual GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dra_driver.base.machine import FifoCache
from dra_driver.base.versions import Semver, SemverError, normalize
from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts, Problem
from dra_driver.hardware.nvidia.calls import GpuInstance, GpuInstanceProfile, MigAttributes, Nvml
from dra_driver.hardware.nvidia.queries import Handle, NvmlFault

UNKNOWN = "Unknown"

BRANDS = {
    0: UNKNOWN,
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}

# Those NVML_GPU_INSTANCE_PROFILE_* whose instances differ from the plain profile of the same size.
PROFILE_SUFFIXES = {
    7: "+me",  # 1_SLICE_REV1
    8: "+me",  # 2_SLICE_REV1
    10: "+gfx",  # 1_SLICE_GFX
    11: "+gfx",  # 2_SLICE_GFX
    12: "+gfx",  # 4_SLICE_GFX
    13: "-me",  # 1_SLICE_NO_ME
    14: "-me",  # 2_SLICE_NO_ME
    15: "+me.all",  # 1_SLICE_ALL_ME
    16: "+me.all",  # 2_SLICE_ALL_ME
    17: "+gfx",  # 3_SLICE_GFX
}

_PROFILE = re.compile(r"MIG ((?:\d+c\.)?\d+g\.\d+gb(?:[+-][a-z.]+)?)$")
_EIGHTHS = 8
_GIB = 2**30
_MIB = 2**20


def strict_version(text: str) -> str | None:
    """Return a driver's version as strict semver, or None when it can't be read as one.

    >>> strict_version("580.65.06")
    '580.65.6'
    """
    try:
        return str(Semver.parse(normalize(text.strip())))
    except SemverError:
        return None


def cuda_version(number: int) -> str:
    """Return CUDA's version number as strict semver.

    >>> cuda_version(12040)
    '12.4.0'
    """
    return f"{number // 1000}.{number % 1000 // 10}.0"


def profile_name(
    *, gi_slices: int, ci_slices: int, constant: int, memory_mib: int, gpu_memory_bytes: int
) -> str | None:
    """Return the name of a MIG profile, `[Cc.]Gg.Mgb[suffix]`, or None when the numbers allow no name.

    The memory figure is the instance's share of the GPU in eighths, rounded up, of the GPU's whole GiB.
    Source: the name as NVIDIA's tools print it; the rounding is that of NVIDIA's Go library.

    >>> profile_name(gi_slices=1, ci_slices=1, constant=7, memory_mib=9984, gpu_memory_bytes=81559 * 2**20)
    '1g.10gb+me'
    """
    if min(gi_slices, ci_slices, memory_mib, gpu_memory_bytes) <= 0:
        return None
    share = math.ceil(memory_mib * _MIB / gpu_memory_bytes * _EIGHTHS) / _EIGHTHS
    gigabytes = math.floor(share * -(-gpu_memory_bytes // _GIB) + 0.5)
    compute = f"{ci_slices}c." if ci_slices != gi_slices else ""
    return f"{compute}{gi_slices}g.{gigabytes}gb{PROFILE_SUFFIXES.get(constant, '')}"


def profile_in_name(device_name: str) -> str | None:
    """Return the profile at the end of a MIG device's product name.

    >>> profile_in_name("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb")
    '1c.3g.20gb'
    """
    match = _PROFILE.search(device_name)
    return match.group(1) if match else None


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


_MAX_OF_A_GPU = 0.75  # of its memory; the next smaller instance has half
SOMEWHERE = (-1, -1)
_MAX_GPUS = 64

# By UUID of a GPU: its profiles and its memory, and what `_whole_profile` found.
_whole: FifoCache[str, tuple[tuple[MigProfile, ...], int | None, MigProfile | None]] = FifoCache(_MAX_GPUS)


@dataclass(frozen=True, slots=True)
class MigReading:
    """What exists on one GPU. `unusable` is as in `GpuFacts`; (-1, -1) is an instance of which nothing is known."""

    partitions: tuple[PartitionFacts, ...] = ()
    unusable: tuple[tuple[int, int], ...] = ()
    problems: tuple[Problem, ...] = ()


def read_mig_uuids(nvml: Nvml, gpu: Handle) -> tuple[str, ...]:
    """Return the UUIDs of a GPU's MIG devices, which change when an administrator re-partitions it."""
    return tuple(sorted(nvml.uuid(mig) for _, mig in mig_devices(nvml, gpu)))


def mig_devices(nvml: Nvml, gpu: Handle) -> Iterator[tuple[int, Handle]]:
    """Yield index and handle of a GPU's MIG devices, looking each up when it is reached.

    The library leaves holes in the indices where instances were destroyed.
    """
    for index in range(nvml.mig_devices_max(gpu)):
        mig = nvml.mig_device(gpu, index)
        if mig is not None:
            yield index, mig


def read_partitions(
    nvml: Nvml,
    gpu: Handle,
    profiles: Mapping[int, GpuInstanceProfile],
    *,
    subject: str,
    gpu_memory_bytes: int | None,
) -> MigReading:
    """Read all MIG devices of a GPU that has these profiles; `subject` names the GPU in problems.

    Raises: NvmlFault when they can't even be listed, or when the GPU is lost.
    """
    partitions: list[PartitionFacts] = []
    problems: list[Problem] = []
    for _, mig in mig_devices(nvml, gpu):
        try:
            partitions.append(_read_partition(nvml, gpu, mig, profiles, gpu_memory_bytes))
        except NvmlFault as fault:
            if fault.is_lost:
                raise
            problems.append(Problem("hardware.partition-unreadable", subject, f"a MIG device is left out: {fault}"))
    known = {partition.gi_id for partition in partitions}
    others = [instance for instance in _instances(nvml, gpu, profiles) if instance.id not in known]
    unusable = [(instance.profile_id, instance.start) for instance in others]
    if problems and not others:
        unusable = [SOMEWHERE]
    elif not problems:
        problems = [_unfinished(instance, subject) for instance in others]
    ordered = sorted(partitions, key=lambda p: (p.start, p.gi_id, p.ci_id))
    return MigReading(tuple(ordered), tuple(sorted(unusable)), tuple(problems))


def _instances(nvml: Nvml, gpu: Handle, profiles: Iterable[int]) -> Iterator[GpuInstance]:
    """Yield all GPU instances, including those without a MIG device.

    A profile whose instances can't be read is skipped.
    """
    for profile_id in profiles:
        try:
            yield from [nvml.describe(instance) for instance in nvml.gpu_instances(gpu, profile_id)]
        except NvmlFault as fault:
            if fault.is_lost:
                raise


def _unfinished(instance: GpuInstance, subject: str) -> Problem:
    text = (
        f"GPU instance {instance.id} (profile {instance.profile_id} at slice {instance.start}) has "
        "no compute instance: it can't be used, and nothing else fits in its place"
    )
    return Problem("hardware.unfinished-partition", subject, text)


def _read_partition(
    nvml: Nvml, gpu: Handle, mig: Handle, profiles: Mapping[int, GpuInstanceProfile], gpu_memory_bytes: int | None
) -> PartitionFacts:
    """Read one MIG device.

    Engines and memory are those of the GPU instance, which its compute instances share. Multiprocessors are those of
    the compute instance where it is only a part of the GPU instance.
    """
    gi_id, ci_id = nvml.gi_id(mig), nvml.ci_id(mig)
    instance = nvml.gpu_instance(gpu, gi_id)
    profile = profiles.get(instance.profile_id)
    if profile is None:
        raise NvmlFault("nvmlDeviceGetGpuInstanceProfileInfo", f"no profile has id {instance.profile_id}")
    attributes = _read_attributes(nvml, mig)
    is_whole = attributes is None or attributes.gi_slices == attributes.ci_slices
    return PartitionFacts(
        uuid=nvml.uuid(mig),
        profile=_read_profile_name(nvml, mig, profile, attributes, gpu_memory_bytes),
        gi_profile_id=instance.profile_id,
        gi_id=gi_id,
        ci_id=ci_id,
        start=instance.start,
        size=instance.size,
        memory_bytes=profile.memory_mib * _MIB,
        multiprocessors=profile.multiprocessors if is_whole or attributes is None else attributes.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpeg_engines=profile.jpeg_engines,
        ofa_engines=profile.ofa_engines,
    )


def _read_attributes(nvml: Nvml, mig: Handle) -> MigAttributes | None:
    try:
        return nvml.mig_attributes(mig)
    except NvmlFault as fault:
        if not fault.is_absent:
            raise
        return None


def _read_profile_name(
    nvml: Nvml,
    mig: Handle,
    profile: GpuInstanceProfile,
    attributes: MigAttributes | None,
    gpu_memory_bytes: int | None,
) -> str:
    """Return the profile's name from its numbers or, where those are missing, from the device's product name."""
    name = None
    if attributes is not None and gpu_memory_bytes:
        name = profile_name(
            gi_slices=attributes.gi_slices,
            ci_slices=attributes.ci_slices,
            constant=profile.constant,
            memory_mib=attributes.memory_mib,
            gpu_memory_bytes=gpu_memory_bytes,
        )
    name = name or profile_in_name(nvml.name(mig))
    if name is None:
        raise NvmlFault("nvmlDeviceGetAttributes", "neither its numbers nor its product name reveal the profile")
    return name


def has_instances(nvml: Nvml, handle: Handle, gpu: GpuFacts) -> bool:
    """Return whether there is a GPU instance, finished or not: there is none if one of the whole GPU would fit."""
    whole = _whole_profile(gpu)
    try:
        if whole is not None:
            return nvml.gpu_instances_left(handle, whole.gi_profile_id) == 0
    except NvmlFault as fault:
        if not fault.is_absent:
            raise
    return _lists_instances(nvml, handle)


def _whole_profile(gpu: GpuFacts) -> MigProfile | None:
    """Return the profile of an instance that takes the whole GPU, so that there is no room for another one beside it.

    None where that is not certain, because the library does not report the profiles in full.
    """
    kept = _whole.get(gpu.uuid)
    if kept is None or kept[:2] != (gpu.mig_profiles, gpu.memory_bytes):
        kept = gpu.mig_profiles, gpu.memory_bytes, _find_whole_profile(gpu)
        _whole.keep(gpu.uuid, kept)
    return kept[2]


def _find_whole_profile(gpu: GpuFacts) -> MigProfile | None:
    slices = max((start + profile.size for profile in gpu.mig_profiles for start in profile.starts), default=0)
    for profile in gpu.mig_profiles:
        has_all = gpu.memory_bytes is not None and profile.memory_bytes > gpu.memory_bytes * _MAX_OF_A_GPU
        if has_all and profile.size == slices and profile.max_instances == 1:
            return profile
    return None


def _lists_instances(nvml: Nvml, handle: Handle) -> bool:
    """Return whether there is a GPU instance, by asking for those of each profile."""
    profiles = nvml.gi_profiles(handle)
    if not profiles:
        return next(mig_devices(nvml, handle), None) is not None
    for profile_id in profiles:
        try:
            if nvml.gpu_instances(handle, profile_id):
                return True
        except NvmlFault as fault:
            if not fault.is_absent:
                raise
    return False
