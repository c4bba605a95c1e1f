"""GPU instances and compute instances, created and destroyed by the worker of their GPU.

In: library calls, a GPU, a profile and a placement. Out: the partition as facts, or the library's refusal as
`NvmlFault`. Everything begins by reading what exists, so that each step may be repeated after a crash. What fails
half-way is undone here. Never waits.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from dra_driver.base.telemetry.logs import start_thread
from dra_driver.hardware.facts import MigProfile, PartitionFacts
from dra_driver.hardware.nvidia.calls import ComputeInstance, Nvml
from dra_driver.hardware.nvidia.mig_reading import mig_devices
from dra_driver.hardware.nvidia.queries import Handle, NvmlFault, is_same_handle

# errors for an instance that another process has destroyed, or that went with its MIG mode
GONE = frozenset(["NOT_FOUND", "INVALID_ARGUMENT", "NOT_SUPPORTED"])


@dataclass(frozen=True, slots=True)
class SeenPartition:
    """A partition as it was seen; a few calls find its instances again if it still exists.

    A library numbers instances anew after one was destroyed, and may give a partition elsewhere the same UUID, so
    place, size and UUID are compared. An outdated record costs more calls, but is never trusted. `index` is that of its
    MIG device, None where the library reports the MIG device for a compute instance.
    """

    facts: PartitionFacts
    ci_profile_id: int
    index: int | None

    def instances(self, nvml: Nvml, gpu: Handle) -> tuple[Handle, Handle] | None:
        """Return its GPU instance and its compute instance; None if it is no longer there as it was seen.

        Raises: NvmlFault.
        """
        try:
            return self._instances(nvml, gpu)
        except NvmlFault as fault:
            if fault.name not in GONE:
                raise
            return None

    def _instances(self, nvml: Nvml, gpu: Handle) -> tuple[Handle, Handle] | None:
        facts = self.facts
        instance = nvml.gpu_instance_handle(gpu, facts.gi_id)
        place = nvml.describe(instance)
        if (place.profile_id, place.start) != (facts.gi_profile_id, facts.start):
            return None
        compute = nvml.compute_instance_handle(instance, facts.ci_id)
        found = nvml.describe_compute_instance(compute)
        device = found.device if self.index is None else nvml.mig_device(gpu, self.index)
        if found.profile_id != self.ci_profile_id or device is None or nvml.uuid(device) != facts.uuid:
            return None
        return instance, compute


class SeenPartitions:
    """The partitions that were seen last, by the UUID of their GPU and their place: profile id and first slice."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, tuple[int, int]], SeenPartition] = {}  # at most one for each place of a node

    def at(self, gpu_uuid: str, place: tuple[int, int]) -> SeenPartition | None:
        """Return the partition that was seen at a place last."""
        return self._kept.get((gpu_uuid, place))

    def keep(self, gpu_uuid: str, seen: SeenPartition) -> None:
        """Keep a partition that was seen now."""
        self._kept[gpu_uuid, (seen.facts.gi_profile_id, seen.facts.start)] = seen

    def forget(self, gpu_uuid: str, place: tuple[int, int] | None) -> None:
        """Forget the partition at a place, which is gone: to ask for it would cost a call, and an error."""
        if place is not None:
            self._kept.pop((gpu_uuid, place), None)


class SharedInstance(Exception):
    """A GPU instance exists at the placement, but it is divided into compute instances of other sizes."""


def make_partition(
    nvml: Nvml, gpu: Handle, profile: MigProfile, start: int, *, is_empty: bool
) -> tuple[SeenPartition, bool]:
    """Create a GPU instance and its compute instance, or only the missing one.

    Return the partition, and whether it is new. MIG mode has to be on; `is_empty` says that it has just been switched
    on, so that there is nothing to look for. Raises: NvmlFault, SharedInstance.
    """
    instance = None if is_empty else _instance_at(nvml, gpu, profile.gi_profile_id, start)
    if instance is not None:
        found = _finished(nvml, gpu, instance, profile)
        return (found, False) if found else (_complete(nvml, gpu, instance, profile), True)
    instance = nvml.create_gpu_instance(gpu, profile.gi_profile_id, start, profile.size)
    try:
        return _with_compute_instance(nvml, gpu, instance, profile), True
    except NvmlFault:
        _take_back(lambda: nvml.destroy_gpu_instance(instance))
        raise


def _instance_at(nvml: Nvml, gpu: Handle, gi_profile_id: int, start: int) -> Handle | None:
    for instance in nvml.gpu_instances(gpu, gi_profile_id):
        if nvml.describe(instance).start == start:
            return instance
    return None


def partition_at(nvml: Nvml, gpu: Handle, profile: MigProfile, start: int) -> SeenPartition | None:
    """Return the finished partition at one placement, None where there is none. Raises: NvmlFault."""
    instance = _instance_at(nvml, gpu, profile.gi_profile_id, start)
    return None if instance is None else _finished(nvml, gpu, instance, profile)


def _finished(nvml: Nvml, gpu: Handle, instance: Handle, profile: MigProfile) -> SeenPartition | None:
    """Return the partition of a GPU instance that has a compute instance of its full size."""
    there = nvml.compute_instances(instance, nvml.ci_profile_id(instance, profile.gi_profile_id, profile.slices))
    return _describe(nvml, gpu, instance, there[0], profile) if there else None


def _complete(nvml: Nvml, gpu: Handle, instance: Handle, profile: MigProfile) -> SeenPartition:
    """Create the compute instance that an existing GPU instance lacks."""
    if not nvml.compute_instances_left(instance, nvml.ci_profile_id(instance, profile.gi_profile_id, profile.slices)):
        raise SharedInstance
    return _with_compute_instance(nvml, gpu, instance, profile)


def _with_compute_instance(nvml: Nvml, gpu: Handle, instance: Handle, profile: MigProfile) -> SeenPartition:
    """Create the compute instance of a GPU instance that has none."""
    compute = nvml.create_compute_instance(
        instance, nvml.ci_profile_id(instance, profile.gi_profile_id, profile.slices)
    )
    try:
        return _describe(nvml, gpu, instance, compute, profile)
    except NvmlFault:
        _take_back(lambda: nvml.destroy_compute_instance(compute))
        raise


def _take_back(destroy: Callable[[], None]) -> None:
    """Undo a step. If even that fails, the next call for the placement completes or removes the instance."""
    with contextlib.suppress(NvmlFault):
        destroy()


def _describe(nvml: Nvml, gpu: Handle, instance: Handle, compute: Handle, profile: MigProfile) -> SeenPartition:
    place, found = nvml.describe(instance), nvml.describe_compute_instance(compute)
    uuid, index = _mig_uuid(nvml, gpu, found, place.id)
    facts = PartitionFacts(
        uuid=uuid,
        profile=profile.name,
        gi_profile_id=profile.gi_profile_id,
        gi_id=place.id,
        ci_id=found.id,
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
    return SeenPartition(facts, found.profile_id, index)


def _mig_uuid(nvml: Nvml, gpu: Handle, compute: ComputeInstance, gi_id: int) -> tuple[str, int | None]:
    """Return the UUID of the MIG device of a compute instance, and its index if that was needed to find it.

    The device that the library reports for a compute instance is the MIG device with some drivers, and its GPU with
    others and according to the manual.
    """
    if not is_same_handle(compute.device, gpu):  # which also spares the call for the GPU's UUID
        uuid = nvml.uuid(compute.device)
        if uuid.startswith("MIG-"):
            return uuid, None
    for index, mig in mig_devices(nvml, gpu):
        if (nvml.gi_id(mig), nvml.ci_id(mig)) == (gi_id, compute.id):
            return nvml.uuid(mig), index
    raise NvmlFault("nvmlDeviceGetMigDeviceHandleByIndex", f"no MIG device for instance {gi_id}/{compute.id}")


@dataclass(slots=True)
class Removal:
    """The removal of one partition, in as many attempts as it takes.

    `uuid` is that of the MIG device, "" for none. `placement` is a GPU instance profile's id and a first memory slice:
    a GPU instance there that has no compute instance at all (after a crash) is destroyed too. `seen` is what was seen
    at the placement last: if it is still there, nothing has to be searched for.
    """

    uuid: str
    placement: tuple[int, int] | None
    seen: SeenPartition | None = None
    _gi_id: int | None = None
    _instance: Handle | None = None  # in the attempt that destroys the compute instance

    def attempt(self, nvml: Nvml, gpu: Handle, profiles: tuple[MigProfile, ...]) -> None:
        """Destroy what still exists; `profiles` are those of the GPU.

        Raises: NvmlFault (IN_USE: to be tried again).
        """
        seen, self.seen = self.seen, None  # later attempts find a part of it at most
        if seen is not None and seen.facts.uuid == self.uuid and (found := seen.instances(nvml, gpu)):
            instance, compute = found
            nvml.destroy_compute_instance(compute)
            nvml.destroy_gpu_instance(instance)
            return
        if not nvml.mig_mode(gpu)[0]:
            return  # switching MIG mode off destroys every instance
        if self.uuid:
            self._destroy_compute_instance(nvml, gpu)
        instance = self._left_over(nvml, gpu)
        if instance is not None and _is_empty(nvml, instance, profiles):
            nvml.destroy_gpu_instance(instance)

    def _destroy_compute_instance(self, nvml: Nvml, gpu: Handle) -> None:
        mig = next((mig for _, mig in mig_devices(nvml, gpu) if nvml.uuid(mig) == self.uuid), None)
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
    return (
        slices is not None
        and nvml.compute_instances_left(instance, nvml.ci_profile_id(instance, profile_id, slices)) > 0
    )


# Threads that make library calls, so that a call that never returns does not block anything else.

T = TypeVar("T")


class JobPreempted(BaseException):
    """A job is abandoned for another one. No handler of ordinary errors in the job may catch this."""


class WorkerStopped(Exception):
    """The worker was stopped before this job was submitted."""


@dataclass(slots=True)
class _Job:
    """One piece of work, and the future that gets its result."""

    work: Callable[[], Any]
    future: Future[Any]
    is_preemptible: bool
    is_begun: bool = False

    def begin(self) -> bool:
        """Return whether the work is to be done; it is not if the future was cancelled before it began."""
        if not self.is_begun:
            self.is_begun = self.future.set_running_or_notify_cancel()
        return self.is_begun


def ended(job: Future[Any], timeout_s: float) -> bool:
    """Wait for the end of a job; return whether it came within `timeout_s` seconds."""
    seconds = min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
    return bool(concurrent.futures.wait((job,), seconds).done)


class Worker:
    """One daemon thread, started with its first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()  # None is the last
        self._lock = threading.Lock()
        self._call: tuple[str, float] | None = None  # the call in flight, and since when (monotonic seconds)
        self._jobs = 0  # jobs that are waiting or running
        self._urgent = 0  # those of them that are not preemptible
        self._is_preemptible = False  # whether the running job is preempted by them
        self._is_stopped = False

    def submit(self, work: Callable[[], T], *, is_preemptible: bool = False) -> Future[T]:
        """Queue `work` behind the jobs that are already waiting. A stopped worker refuses it with WorkerStopped.

        Preemptible work must be harmless to abandon before any library call, and to begin again. A future that is
        cancelled before its work has begun is skipped.

        Raises: NodeError("node.thread"); the next job tries again to start the thread.
        """
        job = _Job(work, Future(), is_preemptible)
        with self._lock:
            if self._is_stopped:
                job.future.set_exception(WorkerStopped(self._name))
                return job.future
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start_thread(thread)
                self._thread = thread
            self._jobs += 1
            self._urgent += not is_preemptible
            self._queue.put(job)
        return job.future

    def mark(self, call: str) -> None:
        """Record that the running job makes this library call now. Raises: JobPreempted instead if it is preempted."""
        if self._is_preemptible and self._urgent:
            raise JobPreempted
        self._call = (call, time.monotonic())

    @property
    def is_busy(self) -> bool:
        """Return whether a job is running or waiting."""
        return self._jobs > 0

    def waits_for(self) -> tuple[str, float]:
        """Return the call in flight and for how many seconds it has been so; ("", 0.0) when idle."""
        call = self._call
        return (call[0], time.monotonic() - call[1]) if call else ("", 0.0)

    def stop(self) -> None:
        """End the thread after the jobs that are already waiting."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            self.mark("start")
            self._is_preemptible = job.is_preemptible
            try:
                give = self._work(job)
            except JobPreempted:
                self._is_preemptible, self._call = False, None
                self._put_back(job)
                continue
            self._is_preemptible, self._call = False, None
            with self._lock:
                self._jobs -= 1
                self._urgent -= not job.is_preemptible
            give()  # last, because the thread that waits may go on at once

    @staticmethod
    def _work(job: _Job) -> Callable[[], None]:
        """Do a job, and return the function that gives its outcome to the future. Raises: JobPreempted."""
        if not job.begin():
            return lambda: None
        try:
            result = job.work()
        except JobPreempted:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to whoever takes the result
            fault = error
            return lambda: job.future.set_exception(fault)
        return lambda: job.future.set_result(result)

    def _put_back(self, job: _Job) -> None:
        with self._lock:
            if self._is_stopped:
                self._jobs -= 1
                job.future.set_exception(WorkerStopped(self._name))
                return
            self._queue.put(job)
