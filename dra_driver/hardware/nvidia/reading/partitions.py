"""The MIG devices of one GPU as they are now.

In: library calls and the GPU's memory. Out: `PartitionFacts` in order of placement, the other instances on the GPU, and
problems. A MIG device is left out with a problem if anything that names or sizes it can't be read, but its place still
counts as taken. Never creates or destroys an instance: `partitioning` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts, Problem
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.mig_instances import GpuInstance, MigAttributes
from dra_driver.hardware.nvidia.nvml.mig_profiles import GpuInstanceProfile
from dra_driver.hardware.nvidia.nvml.nvml import Nvml
from dra_driver.hardware.nvidia.reading.names import profile_in_name, profile_name
from dra_driver.model.fifo_cache import FifoCache

_MIB = 2**20
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
