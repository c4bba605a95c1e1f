"""GPU instances and compute instances, created and destroyed by the worker of their GPU.

In: library calls, a GPU, a profile and a placement. Out: the partition as facts, or the library's refusal as
`NvmlFault`. Everything begins by reading what exists, so that each step may be repeated after a crash. What fails
half-way is undone here. Never waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.hardware.facts import CreatedPartition, MigProfile, PartitionFacts, PlaceFacts
from dra_driver.hardware.nvidia.mig import mig_devices
from dra_driver.hardware.nvidia.nvml import Nvml
from dra_driver.hardware.nvidia.nvml_mig import Handle, NvmlFault

# errors for an instance that has been destroyed by another process in the meantime
GONE = frozenset(["NOT_FOUND", "INVALID_ARGUMENT"])


class SharedInstance(Exception):
    """A GPU instance exists at the placement, but it is divided into compute instances of other sizes."""


def make_partition(nvml: Nvml, gpu: Handle, profile: MigProfile, start: int) -> CreatedPartition:
    """Create GPU instance and compute instance, or whichever of them is missing, and return the partition.

    MIG mode has to be on. Raises: NvmlFault, SharedInstance.
    """
    instance = _instance_at(nvml, gpu, profile.gi_profile_id, start)
    if instance is not None:
        found = _finished(nvml, gpu, instance, profile)
        return CreatedPartition(found, is_new=False) if found else _complete(nvml, gpu, instance, profile)
    instance = nvml.create_gpu_instance(gpu, profile.gi_profile_id, start, profile.size)
    try:
        return _with_compute_instance(nvml, gpu, instance, profile)
    except NvmlFault:
        _take_back(lambda: nvml.destroy_gpu_instance(instance))
        raise


def _instance_at(nvml: Nvml, gpu: Handle, gi_profile_id: int, start: int) -> Handle | None:
    for instance in nvml.gpu_instances(gpu, gi_profile_id):
        if nvml.describe(instance).start == start:
            return instance
    return None


def place_now(nvml: Nvml, gpu: Handle, profile: MigProfile, start: int) -> PlaceFacts:
    """Return what is at one placement. Raises: NvmlFault."""
    if not nvml.mig_mode(gpu)[0]:
        return PlaceFacts(mig_enabled=False)
    instance = _instance_at(nvml, gpu, profile.gi_profile_id, start)
    return PlaceFacts(True, None if instance is None else _finished(nvml, gpu, instance, profile))


def _finished(nvml: Nvml, gpu: Handle, instance: Handle, profile: MigProfile) -> PartitionFacts | None:
    """Return the partition of a GPU instance that has a compute instance of its full size."""
    there = nvml.compute_instances(instance, nvml.ci_profile_id(instance, profile.slices))
    return _describe(nvml, gpu, instance, there[0], profile) if there else None


def _complete(nvml: Nvml, gpu: Handle, instance: Handle, profile: MigProfile) -> CreatedPartition:
    """Create the compute instance that an existing GPU instance lacks."""
    if not nvml.compute_instances_left(instance, nvml.ci_profile_id(instance, profile.slices)):
        raise SharedInstance
    return _with_compute_instance(nvml, gpu, instance, profile)


def _with_compute_instance(nvml: Nvml, gpu: Handle, instance: Handle, profile: MigProfile) -> CreatedPartition:
    """Create the compute instance of a GPU instance that has none."""
    compute = nvml.create_compute_instance(instance, nvml.ci_profile_id(instance, profile.slices))
    try:
        return CreatedPartition(_describe(nvml, gpu, instance, compute, profile), is_new=True)
    except NvmlFault:
        _take_back(lambda: nvml.destroy_compute_instance(compute))
        raise


def _take_back(destroy: Callable[[], None]) -> None:
    """Undo a step. If even that fails, the next call for the placement completes or removes the instance."""
    with contextlib.suppress(NvmlFault):
        destroy()


def _describe(nvml: Nvml, gpu: Handle, instance: Handle, compute: Handle, profile: MigProfile) -> PartitionFacts:
    place = nvml.describe(instance)
    ci_id, device = nvml.describe_compute_instance(compute)
    return PartitionFacts(
        uuid=_mig_uuid(nvml, gpu, device, place.id, ci_id),
        profile=profile.name,
        gi_profile_id=profile.gi_profile_id,
        gi_id=place.id,
        ci_id=ci_id,
        start=place.start,
        size=place.size,
        memory_bytes=profile.memory_bytes,
        multiprocessors=profile.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpeg_engines=profile.jpeg_engines,
        ofa_engines=profile.ofa_engines,
    )


def _mig_uuid(nvml: Nvml, gpu: Handle, device: Handle, gi_id: int, ci_id: int) -> str:
    """Return the UUID of the MIG device of a compute instance.

    The device that the library reports for a compute instance is the MIG device with some drivers, and its GPU with
    others and according to the manual.
    """
    uuid = nvml.uuid(device)
    if uuid.startswith("MIG-"):
        return uuid
    for mig in mig_devices(nvml, gpu):
        if (nvml.gi_id(mig), nvml.ci_id(mig)) == (gi_id, ci_id):
            return nvml.uuid(mig)
    raise NvmlFault("nvmlDeviceGetMigDeviceHandleByIndex", f"no MIG device for instance {gi_id}/{ci_id}")


@dataclass(slots=True)
class Removal:
    """The removal of one partition, in as many attempts as it takes.

    `uuid` is that of the MIG device, "" for none. `placement` is a GPU instance profile's id and a first memory slice:
    a GPU instance there that has no compute instance at all (after a crash) is destroyed too.
    """

    uuid: str
    placement: tuple[int, int] | None
    _gi_id: int | None = None
    _instance: Handle | None = None  # in the attempt that destroys the compute instance

    def attempt(self, nvml: Nvml, gpu: Handle, profiles: tuple[MigProfile, ...]) -> None:
        """Destroy what still exists; `profiles` are those of the GPU.

        Raises: NvmlFault (IN_USE: to be tried again).
        """
        if not nvml.mig_mode(gpu)[0]:
            return  # switching MIG mode off destroys every instance
        if self.uuid:
            self._destroy_compute_instance(nvml, gpu)
        instance = self._left_over(nvml, gpu)
        if instance is not None and _is_empty(nvml, instance, profiles):
            nvml.destroy_gpu_instance(instance)

    def _destroy_compute_instance(self, nvml: Nvml, gpu: Handle) -> None:
        mig = next((mig for mig in mig_devices(nvml, gpu) if nvml.uuid(mig) == self.uuid), None)
        if mig is None:
            return
        gi_id, ci_id = nvml.gi_id(mig), nvml.ci_id(mig)
        instance = nvml.gpu_instance_handle(gpu, gi_id)
        nvml.destroy_compute_instance(nvml.compute_instance_handle(instance, ci_id))
        self._gi_id, self._instance = gi_id, instance

    def _left_over(self, nvml: Nvml, gpu: Handle) -> Handle | None:
        """Return the GPU instance whose compute instance was destroyed, by this removal or before a crash."""
        instance, self._instance = self._instance, None
        if instance is not None:
            return instance
        if self._gi_id is not None:
            try:
                return nvml.gpu_instance_handle(gpu, self._gi_id)
            except NvmlFault as fault:
                if fault.name not in GONE:
                    raise
                return None
        return _instance_at(nvml, gpu, *self.placement) if self.placement else None


def _is_empty(nvml: Nvml, instance: Handle, profiles: tuple[MigProfile, ...]) -> bool:
    """Return whether a compute instance of the full size would fit, which means that there is none of any size."""
    profile_id = nvml.describe(instance).profile_id
    slices = next((profile.slices for profile in profiles if profile.gi_profile_id == profile_id), None)
    return slices is not None and nvml.compute_instances_left(instance, nvml.ci_profile_id(instance, slices)) > 0
