"""Partitioning: MIG mode and partitions of NVIDIA GPUs, with deadlines.

In: what a caller asks of one GPU. Out: the same, done by the GPU's worker, or a HardwareError that says what stands in
the way. Calls of one GPU wait for each other; nothing else does. What is in use is asked again until the deadline, with
the worker free in between. A call that outlasts its deadline goes on: whoever asks again finds what came of it. Of the
caller's facts only UUID and PCI address count, which a caller after a restart still knows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts
from dra_driver.hardware.nvidia.instances import MigOff, Removal, SharedInstance, make_partition
from dra_driver.hardware.nvidia.mig import MigReading, mig_devices, read_partitions
from dra_driver.hardware.nvidia.nvml import Nvml
from dra_driver.hardware.nvidia.nvml_mig import Handle, NvmlFault
from dra_driver.hardware.nvidia.session import GpuWorker, NvmlSession
from dra_driver.hardware.nvidia.worker import WorkerEnded
from dra_driver.model.errors import HardwareError, Retry

T = TypeVar("T")
Work = Callable[[Nvml, Handle, GpuFacts], T]  # with the GPU's handle, and its facts as last read
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_TAKE_BACK_S = 1.0


class Partitioning:
    """Changes of GPUs.

    `session` gives the library in use, None while it is not open; `is_gone` says without it that a GPU was taken out.
    """

    def __init__(
        self, session: Callable[[], NvmlSession | None], is_gone: Callable[[GpuFacts], bool], overdue_s: float
    ) -> None:
        self._session = session
        self._is_gone = is_gone
        self._overdue_s = overdue_s

    def create(self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float) -> PartitionFacts:
        """Make a partition unless it is there."""
        what = f"{profile.name} at slice {start} of GPU {gpu.pci_address}"
        end = time.monotonic() + deadline_s
        try:
            return self._until_free(
                gpu, lambda nvml, handle, _: make_partition(nvml, handle, profile, start), end, "partition-in-use", what
            )
        except MigOff:
            raise HardwareError("mig-off", f"MIG mode of GPU {gpu.pci_address} is off", retry=Retry.LATER) from None
        except SharedInstance:
            raise HardwareError(
                "partition-in-use", f"{what} is divided into smaller compute instances", retry=Retry.LATER
            ) from None

    def destroy(self, gpu: GpuFacts, removal: Removal, deadline_s: float) -> None:
        """Destroy a partition that may be gone."""
        what = f"partition {removal.uuid or removal.placement} of GPU {gpu.pci_address}"
        self._until_free(
            gpu,
            lambda nvml, handle, known: removal.attempt(nvml, handle, known.mig_profiles),
            time.monotonic() + deadline_s,
            "partition-in-use",
            what,
        )

    def set_mode(self, gpu: GpuFacts, deadline_s: float, *, enabled: bool) -> None:
        """Switch MIG mode where that needs no reset."""
        change, end = _Switch(enabled), time.monotonic() + deadline_s
        try:
            self._until_free(gpu, change.attempt, end, "gpu-in-use", f"GPU {gpu.pci_address}")
        except HardwareError:
            with contextlib.suppress(HardwareError, NvmlFault):  # the refusal is what counts
                self.ask(gpu, change.take_back, time.monotonic() + _TAKE_BACK_S)
            raise

    def mode(self, gpu: GpuFacts, deadline_s: float) -> bool:
        """Read whether MIG mode is on."""
        try:
            return self.ask(gpu, lambda nvml, handle, _: nvml.mig_mode(handle)[0], time.monotonic() + deadline_s)
        except NvmlFault as fault:
            raise _refusal(fault, f"MIG mode of GPU {gpu.pci_address}") from fault

    def read(self, gpu: GpuFacts, deadline_s: float) -> MigReading:
        """Read what stands on a GPU."""
        worker, _ = self._find(gpu)

        def read(nvml: Nvml, handle: Handle, known: GpuFacts) -> MigReading:
            if not nvml.mig_mode(handle)[0]:
                return MigReading()
            profiles = worker.profiles.of_instances(nvml, handle, known.uuid)
            subject, memory_bytes = known.pci_address, known.memory_bytes
            return read_partitions(nvml, handle, profiles, subject=subject, gpu_memory_bytes=memory_bytes)

        try:
            return self.ask(gpu, read, time.monotonic() + deadline_s)
        except NvmlFault as fault:
            raise _refusal(fault, f"partitions of GPU {gpu.pci_address}") from fault

    def _until_free(self, gpu: GpuFacts, work: Work[T], end: float, in_use: str, what: str) -> T:
        """Ask again while something is in use. Raises: HardwareError, and what `work` raises of its own."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self.ask(gpu, work, end)
            except NvmlFault as fault:
                if fault.name != "IN_USE":
                    raise _refusal(fault, what) from fault
                if time.monotonic() + pause_s >= end:
                    raise _in_use(in_use, what, fault) from fault
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def ask(self, gpu: GpuFacts, work: Work[T], end: float) -> T:
        """Let the GPU's worker do something until `end` (monotonic seconds). Raises: NvmlFault, HardwareError."""
        worker, known = self._find(gpu)
        job = worker.worker.submit(lambda: work(worker.nvml, worker.find(gpu.uuid), known))
        if worker.is_overdue(self._overdue_s) or not job.wait(end - time.monotonic()):
            job.drop()
            call = worker.worker.waits_for()[0]
            raise HardwareError(
                "not-answering", f"GPU {gpu.pci_address} does not answer {call or 'in time'}", retry=Retry.LATER
            )
        try:
            return job.take()
        except WorkerEnded as ended:
            raise _not_open(gpu) from ended

    def _find(self, gpu: GpuFacts) -> tuple[GpuWorker, GpuFacts]:
        """Return the GPU's worker, and its facts as last read.

        Raises: HardwareError; "hardware.gpu-lost" only where it is certain, for then its partitions are gone too.
        """
        session = self._session()
        if session is None:
            raise _lost(gpu) if self._is_gone(gpu) else _not_open(gpu)
        readings = [(worker, worker.last) for worker in session.gpus]
        for worker, last in readings:
            if last is None or last.address != gpu.pci_address:
                continue
            if last.facts is not None and last.facts.uuid == gpu.uuid:
                return worker, last.facts
            if last.facts is None and not last.is_lost:
                raise HardwareError("not-answering", f"GPU {gpu.pci_address} can't be read", retry=Retry.LATER)
            break
        else:
            if not readings or any(last is None or last.address is None for _, last in readings):
                raise HardwareError("not-answering", f"GPU {gpu.pci_address} has not answered", retry=Retry.LATER)
        raise _lost(gpu)


def _lost(gpu: GpuFacts) -> HardwareError:
    return HardwareError("gpu-lost", f"GPU {gpu.pci_address} ({gpu.uuid}) is lost", retry=Retry.LATER)


def _not_open(gpu: GpuFacts) -> HardwareError:
    return HardwareError("no-library", f"GPU {gpu.pci_address} is not known to the driver now", retry=Retry.LATER)


@dataclass(slots=True)
class _Switch:
    """A change of MIG mode, in as many attempts as it takes until it reads back."""

    enabled: bool
    _is_asked: bool = False

    def attempt(self, nvml: Nvml, handle: Handle, gpu: GpuFacts) -> None:
        """Switch, or look whether it came to pass. What can't be done now is taken back: no reset shall do it later.

        Raises: NvmlFault (IN_USE: to be tried again), HardwareError.
        """
        current, pending = nvml.mig_mode(handle)
        if current == self.enabled:
            return
        if not gpu.mig_toggles_without_reset:
            raise _reset_needed(gpu)
        if current and _has_instances(nvml, handle, gpu):
            raise HardwareError(
                "partition-in-use", f"GPU {gpu.pci_address} still has MIG partitions", retry=Retry.LATER
            )
        if not (self._is_asked and pending == self.enabled):
            refusal = nvml.set_mig_mode(handle, enabled=self.enabled)
            if refusal:
                nvml.set_mig_mode(handle, enabled=current)
                raise _reset_needed(gpu) if refusal == "RESET_REQUIRED" else NvmlFault("nvmlDeviceSetMigMode", refusal)
            self._is_asked = True
        if nvml.mig_mode(handle)[0] != self.enabled:  # the library said yes; the GPU takes its time
            raise NvmlFault("nvmlDeviceGetMigMode", "IN_USE")

    def take_back(self, nvml: Nvml, handle: Handle, _gpu: GpuFacts) -> None:
        """Leave nothing pending of a change that did not come to pass in time. Raises: NvmlFault."""
        current, pending = nvml.mig_mode(handle)
        if self._is_asked and current != self.enabled and pending == self.enabled:
            nvml.set_mig_mode(handle, enabled=current)


def _has_instances(nvml: Nvml, handle: Handle, gpu: GpuFacts) -> bool:
    """Return whether there is a GPU instance, finished or not."""
    ids = (profile.gi_profile_id for profile in gpu.mig_profiles)
    is_cut = next(mig_devices(nvml, handle), None) is not None
    return is_cut or any(nvml.gpu_instances(handle, gi_profile_id) for gi_profile_id in ids)


def _reset_needed(gpu: GpuFacts) -> HardwareError:
    return HardwareError(
        "reset-needed",
        f"MIG mode of GPU {gpu.pci_address} can only be changed by a reset",
        hint="drain the node, then nvidia-smi -mig and a reset (or a reboot) by an administrator",
    )


def _in_use(code: str, what: str, fault: NvmlFault) -> HardwareError:
    return HardwareError(
        code,
        f"{what} is in use ({fault.call})",
        hint="a process still runs on it, or a monitoring program keeps it open",
        retry=Retry.LATER,
    )


def _refusal(fault: NvmlFault, what: str) -> HardwareError:
    """Say in our words what the library refuses."""
    if fault.is_lost:
        return HardwareError("gpu-lost", f"{what}: the GPU is lost ({fault})", retry=Retry.LATER)
    if fault.name == "INSUFFICIENT_RESOURCES":
        text = f"no room for {what}: another partition overlaps it ({fault.call})"
        return HardwareError("insufficient-resources", text, retry=Retry.LATER)
    if fault.name == "NO_PERMISSION":
        return HardwareError("no-permission", f"{what}: {fault}", hint="MIG is managed by root, outside of containers")
    return HardwareError("partitioning-failed", f"{what}: {fault}", retry=Retry.LATER)
