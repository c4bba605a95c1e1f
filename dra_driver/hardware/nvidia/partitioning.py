"""Partitioning: MIG mode and partitions of NVIDIA GPUs, with deadlines.

In: the change that a caller wants of one GPU. Out: its result, from the GPU's worker, or a HardwareError that explains
what prevents it. Calls for one GPU wait for each other; nothing else waits. An operation on something that is in use is
repeated until the deadline, and the worker is free in between. A caller that repeats a call which outlasted its
deadline finds its result.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TypeVar

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.hardware.facts import CreatedPartition, GpuFacts, MigProfile, PlacementFacts
from dra_driver.hardware.nvidia.calls import Nvml
from dra_driver.hardware.nvidia.changes import GpuCalls, Work
from dra_driver.hardware.nvidia.instances import Removal, SeenPartitions, SharedInstance, make_partition, partition_at
from dra_driver.hardware.nvidia.mig_reading import MigReading, has_instances, read_partitions
from dra_driver.hardware.nvidia.queries import Handle, NvmlFault

T = TypeVar("T")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_TAKE_BACK_S = 1.0
_CALLS_ABOUT_MODE = ("nvmlDeviceSetMigMode", "nvmlDeviceGetMigMode")


class Partitioning:
    """Changes to the MIG mode and the partitions of GPUs, made by `calls`."""

    def __init__(self, calls: GpuCalls) -> None:
        self._calls, self._seen = calls, SeenPartitions()

    def create(
        self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float, *, switches_on: bool
    ) -> CreatedPartition:
        """Return a partition, created now unless it exists (port.Partitionable).

        All of it is one job of the worker, because each hand-over to another thread costs as much as several calls.
        """
        what = f"{profile.name} at slice {start} of GPU {gpu.pci_address}"
        switch, end = _Switch(True), time.monotonic() + deadline_s

        def attempt(nvml: Nvml, handle: Handle, known: GpuFacts) -> CreatedPartition:
            was_asked = switch.is_asked
            if switches_on:
                switch.attempt(nvml, handle, known)
            elif not nvml.mig_mode(handle)[0]:
                raise HardwareError("mig-off", f"MIG mode of GPU {gpu.pci_address} is off", retry=Retry.LATER)
            is_empty = switch.is_asked and not was_asked
            made, is_new = make_partition(nvml, handle, profile, start, is_empty=is_empty)
            self._seen.keep(gpu.uuid, made)
            return CreatedPartition(made.facts, is_new, switch.is_asked)

        try:
            return self._until_free(gpu, attempt, end, what)
        except HardwareError:
            self._take_back(gpu, switch)
            raise
        except SharedInstance:
            raise HardwareError(
                "partition-in-use", f"{what} is divided into smaller compute instances", retry=Retry.LATER
            ) from None

    def destroy(
        self, gpu: GpuFacts, uuid: str, placement: tuple[int, int] | None, deadline_s: float, *, switches_off: bool
    ) -> bool:
        """Destroy a partition, which may be gone already, and MIG mode after it (port.Partitionable)."""
        what = f"partition {uuid or placement} of GPU {gpu.pci_address}"
        removal = Removal(uuid, placement, self._seen.at(gpu.uuid, placement) if placement else None)

        def attempt(nvml: Nvml, handle: Handle, known: GpuFacts) -> bool:
            removal.attempt(nvml, handle, known.mig_profiles)
            self._seen.forget(gpu.uuid, placement)
            return switches_off and _is_switched_off(nvml, handle, known)

        return self._until_free(gpu, attempt, time.monotonic() + deadline_s, what)

    def placement(self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float) -> PlacementFacts:
        """Return what is at one placement (port.Partitionable)."""

        def look(nvml: Nvml, handle: Handle, _known: GpuFacts) -> PlacementFacts:
            seen = self._seen.at(gpu.uuid, (profile.gi_profile_id, start))
            if seen is None or not seen.instances(nvml, handle):
                if not nvml.mig_mode(handle)[0]:
                    return PlacementFacts(mig_enabled=False)
                seen = partition_at(nvml, handle, profile, start)
            if seen is None:
                return PlacementFacts(mig_enabled=True)
            self._seen.keep(gpu.uuid, seen)
            return PlacementFacts(True, seen.facts)

        try:
            return self._calls.ask(gpu, look, time.monotonic() + deadline_s)
        except NvmlFault as fault:
            raise _refusal(fault, f"{profile.name} at slice {start} of GPU {gpu.pci_address}") from fault

    def set_mode(self, gpu: GpuFacts, deadline_s: float, *, enabled: bool) -> None:
        """Switch MIG mode where that needs no reset (port.Partitionable)."""
        self._calls.await_library(deadline_s)
        switch = _Switch(enabled)
        try:
            self._until_free(gpu, switch.attempt, time.monotonic() + deadline_s, f"GPU {gpu.pci_address}")
        except HardwareError:
            self._take_back(gpu, switch)
            raise

    def mode(self, gpu: GpuFacts, deadline_s: float) -> bool:
        """Return whether MIG mode is on."""
        try:
            return self._calls.ask(gpu, lambda nvml, handle, _: nvml.mig_mode(handle)[0], time.monotonic() + deadline_s)
        except NvmlFault as fault:
            raise _refusal(fault, f"MIG mode of GPU {gpu.pci_address}") from fault

    def read(self, gpu: GpuFacts, deadline_s: float) -> MigReading:
        """Return which MIG devices and other instances exist on a GPU."""
        self._calls.await_library(deadline_s)
        worker, _ = self._calls.find(gpu)

        def read(nvml: Nvml, handle: Handle, known: GpuFacts) -> MigReading:
            if not nvml.mig_mode(handle)[0]:
                return MigReading()
            profiles = worker.profiles.of_instances(nvml, handle, known.uuid)
            subject, memory_bytes = known.pci_address, known.memory_bytes
            return read_partitions(nvml, handle, profiles, subject=subject, gpu_memory_bytes=memory_bytes)

        try:
            return self._calls.ask(gpu, read, time.monotonic() + deadline_s)
        except NvmlFault as fault:
            raise _refusal(fault, f"partitions of GPU {gpu.pci_address}") from fault

    def _take_back(self, gpu: GpuFacts, switch: _Switch) -> None:
        """Cancel a change of the mode that is still pending after the work has failed."""
        # the caller needs the original refusal, not a failure to take the change back
        with contextlib.suppress(HardwareError, NvmlFault):
            if switch.is_asked:
                self._calls.ask(gpu, switch.revert, time.monotonic() + _TAKE_BACK_S)

    def _until_free(self, gpu: GpuFacts, work: Work[T], end: float, what: str) -> T:
        """Repeat `work` while something is in use. Raises: HardwareError, and what `work` raises itself."""
        pause_s, refused = _FIRST_PAUSE_S, None
        while True:
            try:
                return self._calls.ask(gpu, work, end)
            except NvmlFault as fault:
                if fault.name != "IN_USE":
                    raise _refusal(fault, what) from fault
                refused = fault
            except HardwareError:
                if refused is None or time.monotonic() < end:
                    raise  # otherwise the last attempt merely ran out of time before the library answered
            if time.monotonic() + pause_s >= end:
                raise _in_use(gpu, what, refused) from refused
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


@dataclass(slots=True)
class _Switch:
    """A change of MIG mode, in as many attempts as it takes until the mode reads back as changed."""

    enabled: bool
    is_asked: bool = False  # whether this object asked for the change

    def attempt(self, nvml: Nvml, handle: Handle, gpu: GpuFacts) -> None:
        """Switch the mode, or check whether an earlier attempt has taken effect.

        A change that can't take effect now is taken back, so that a later reset does not carry it out.

        Raises: NvmlFault (IN_USE: to be tried again), HardwareError.
        """
        current, pending = nvml.mig_mode(handle)
        if current == self.enabled:
            return
        if not gpu.mig_toggles_without_reset:
            raise _reset_needed(gpu)
        if current and has_instances(nvml, handle, gpu):
            raise HardwareError(
                "partition-in-use", f"GPU {gpu.pci_address} still has MIG partitions", retry=Retry.LATER
            )
        if not (self.is_asked and pending == self.enabled):
            refusal = nvml.set_mig_mode(handle, enabled=self.enabled)
            if refusal:
                nvml.set_mig_mode(handle, enabled=current)
                raise _reset_needed(gpu) if refusal == "RESET_REQUIRED" else NvmlFault("nvmlDeviceSetMigMode", refusal)
            self.is_asked = True
        if nvml.mig_mode(handle)[0] != self.enabled:  # the library accepted the change, but the GPU needs more time
            raise NvmlFault("nvmlDeviceGetMigMode", "IN_USE")

    def revert(self, nvml: Nvml, handle: Handle, _gpu: GpuFacts) -> None:
        """Cancel a change that did not take effect in time, so that none stays pending. Raises: NvmlFault."""
        current, pending = nvml.mig_mode(handle)
        if current != self.enabled and pending == self.enabled:
            nvml.set_mig_mode(handle, enabled=current)


def _is_switched_off(nvml: Nvml, handle: Handle, gpu: GpuFacts) -> bool:
    """Switch MIG mode off if that is possible at once, and return whether it is off."""
    switch = _Switch(False)
    try:
        switch.attempt(nvml, handle, gpu)
    except (HardwareError, NvmlFault):
        with contextlib.suppress(NvmlFault):
            if switch.is_asked:
                switch.revert(nvml, handle, gpu)
        return False
    return True


def _reset_needed(gpu: GpuFacts) -> HardwareError:
    return HardwareError(
        "reset-needed",
        f"MIG mode of GPU {gpu.pci_address} can only be changed by a reset",
        hint="an administrator has to drain the node, run nvidia-smi -mig and reset the GPU (or reboot)",
    )


def _in_use(gpu: GpuFacts, what: str, fault: NvmlFault) -> HardwareError:
    is_of_gpu = fault.call in _CALLS_ABOUT_MODE
    return HardwareError(
        "gpu-in-use" if is_of_gpu else "partition-in-use",
        f"{f'GPU {gpu.pci_address}' if is_of_gpu else what} is in use ({fault.call})",
        hint="either a process still runs on it, or a monitoring program keeps it open",
        retry=Retry.LATER,
    )


def _refusal(fault: NvmlFault, what: str) -> HardwareError:
    """Return the library's refusal as an error of this driver."""
    if fault.is_lost:
        return HardwareError("gpu-lost", f"{what}: the GPU is lost ({fault})", retry=Retry.LATER)
    if fault.name == "INSUFFICIENT_RESOURCES":
        text = f"no room for {what}: another partition overlaps it ({fault.call})"
        return HardwareError("insufficient-resources", text, retry=Retry.LATER)
    if fault.name == "NO_PERMISSION":
        return HardwareError(
            "no-permission",
            f"{what}: {fault}",
            hint="only root can manage MIG, and a container needs extra privileges for it",
        )
    return HardwareError("partitioning-failed", f"{what}: {fault}", retry=Retry.LATER)
