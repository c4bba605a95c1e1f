"""Partitioning: MIG mode and partitions of simulated GPUs, created and destroyed.

In: the profile as it is now, and the changes since. Out: new changes, or the errors of real hardware: no room, MIG mode
off, processes on the GPU, a mode that only a reset can change, a lost GPU. Each call takes as long as the profile's
`migDelayMs` states; calls for one GPU wait for each other, those for different GPUs do not.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.wire import ComputeMode, Interval, SharedDevice
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.simulated.models import Placement, placement_faults
from dra_driver.hardware.simulated.profile import SimulatedGpu
from dra_driver.hardware.simulated.state_file import State, StateFile

# Partition changes: partitions and MIG modes that changed since the node started; the profile has the initial ones.

FILE_NAME = "simulated-mig.json"
Key = tuple[str, int]  # profile name and first memory slice


@dataclass(frozen=True, slots=True)
class GpuChanges:
    """How a GPU differs from the profile: partitions created and destroyed, and MIG mode (None: as in the profile)."""

    made: tuple[Key, ...] = ()
    destroyed: tuple[Key, ...] = ()
    mode: bool | None = None
    # the profile's mode at the time of the switch; `mode` counts only while the profile still has that one
    mode_was: bool = False


def current_placements(gpu: SimulatedGpu, changes: GpuChanges) -> tuple[Placement, ...] | None:
    """Return a GPU's current placements, in order of start, or None while MIG mode is off. Pure."""
    is_on = gpu.mig is not None
    if changes.mode is not None and changes.mode_was == is_on:
        is_on = changes.mode
    if not is_on:
        return None
    placements = [p for p in gpu.mig or () if (p.profile.name, p.start) not in changes.destroyed]
    taken = {index for placement in placements for index in placement.slices}
    for name, start in changes.made:
        profile = gpu.model.mig.profile(name) if gpu.model.mig else None
        if profile is not None and not taken & set(Placement(profile, start).slices):
            placements.append(Placement(profile, start))
    return tuple(sorted(placements, key=lambda placement: placement.start))


def with_placement(changes: GpuChanges, key: Key) -> GpuChanges:
    """Return the changes with one partition added."""
    if key in changes.destroyed:
        return replace(changes, destroyed=tuple(other for other in changes.destroyed if other != key))
    return replace(changes, made=(*changes.made, key))


def without_placement(gpu: SimulatedGpu, changes: GpuChanges, key: Key) -> GpuChanges:
    """Return the changes with one partition removed."""
    initial = {(p.profile.name, p.start) for p in gpu.mig or ()}
    destroyed = tuple(other for other in changes.destroyed if other in initial)
    return replace(
        changes,
        made=tuple(other for other in changes.made if other != key),
        destroyed=(*destroyed, key) if key in initial else destroyed,
    )


class PartitionChanges:
    """The changes of all GPUs of a node, by PCI address."""

    def __init__(self, folder: Path | None, boot_id: str) -> None:
        self._file = StateFile(folder / FILE_NAME if folder else None, boot_id)
        self._last: tuple[Mapping[str, Any], Mapping[str, GpuChanges]] = ({}, {})  # what was read, and what it means

    def fingerprint(self) -> Hashable:
        """Return a value that differs after every change."""
        return self._file.fingerprint()

    def read(self) -> Mapping[str, GpuChanges]:
        """Return the changes as they are now."""
        states, last = self._file.read(), self._last
        if last[0] is not states:
            last = self._last = states, {pci: _changes_of(wire) for pci, wire in states.items()}
        return last[1]

    def change(self, pci: str, edit: Callable[[GpuChanges], GpuChanges]) -> None:
        """Replace one GPU's changes with what `edit` makes of them. `edit` runs under the lock, and may raise."""

        def changed(wire: Mapping[str, Any] | None) -> Mapping[str, Any]:
            changes = edit(_changes_of(wire) if wire else GpuChanges())
            is_as_in_profile = not changes.made and not changes.destroyed and changes.mode in {None, changes.mode_was}
            if is_as_in_profile:
                return {}
            return {
                "made": changes.made,
                "destroyed": changes.destroyed,
                "mode": changes.mode,
                "mode_was": changes.mode_was,
            }

        self._file.change(pci, changed)


def _changes_of(wire: Mapping[str, Any]) -> GpuChanges:
    made, destroyed = (tuple((str(name), int(start)) for name, start in wire[key]) for key in ("made", "destroyed"))
    return GpuChanges(made, destroyed, wire["mode"], wire["mode_was"])


_UNCHANGED = GpuChanges()
_POLL_S = 0.02  # pause between two checks whether processes still use a GPU


@dataclass(frozen=True, slots=True)
class CreatedPlacement:
    """A placement that has a partition now, whether this call made it, and whether it switched MIG mode on."""

    placement: Placement
    is_new: bool
    has_switched: bool = False


class Partitioning:
    """MIG of one node.

    `find` returns the profile's GPU with a PCI address, or None where there is none; `users` returns the processes that
    run on a GPU, or on one of its partitions.
    """

    def __init__(
        self,
        changes: PartitionChanges,
        find: Callable[[str], SimulatedGpu | None],
        users: Callable[[SimulatedGpu, PartitionFacts | None], tuple[int, ...]] = lambda gpu, _: gpu.processes,
    ) -> None:
        self._changes, self._find, self._users = changes, find, users
        self._last: dict[str, tuple[SimulatedGpu, GpuChanges, tuple[Placement, ...] | None]] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def create(
        self, facts: GpuFacts, name: str, start: int, deadline_s: float, *, switches_on: bool
    ) -> CreatedPlacement:
        """Create the partition `name` at `start` unless it exists; with `switches_on`, switch MIG mode on before."""
        with self._turn(facts, deadline_s) as gpu:
            placement = _placement(gpu, name, start)
            existing = current_placements(gpu, self._changes_of(gpu))
            has_switched = existing is None
            if existing is None:
                if not switches_on:
                    raise _mig_off(gpu)
                self._await_switch(gpu, deadline_s)
            elif placement in existing:
                return CreatedPlacement(placement, is_new=False)
            self._work(gpu, deadline_s)
            self._changes.change(
                gpu.pci_address,
                lambda changes: _with(gpu, _switched(gpu, changes, True) if has_switched else changes, placement),
            )
            return CreatedPlacement(placement, is_new=True, has_switched=has_switched)

    def placements(self, facts: GpuFacts) -> tuple[Placement, ...] | None:
        """Return a GPU's current partitions, None while MIG mode is off. Raises: HardwareError("hardware.gpu-lost")."""
        gpu = self._present(facts.pci_address)
        changes, last = self._changes_of(gpu), self._last.get(gpu.pci_address)
        if last is None or last[0] is not gpu or last[1] is not changes:
            last = self._last[gpu.pci_address] = gpu, changes, current_placements(gpu, changes)
        return last[2]

    def destroy(
        self, facts: GpuFacts, partition: PartitionFacts | None, deadline_s: float, *, switches_off: bool
    ) -> bool:
        """Destroy a partition, if one is given, as soon as no process runs on its GPU.

        With `switches_off`, switch MIG mode off afterwards unless something prevents that; return whether it is off.
        """
        with self._turn(facts, deadline_s) as gpu:
            if partition is not None:
                self._await_idle(gpu, partition, deadline_s)
                self._work(gpu, deadline_s)
            key = (partition.profile, partition.start) if partition else None
            may_switch = switches_off and self._can_switch(gpu, deadline_s)

            def changed(changes: GpuChanges) -> GpuChanges:
                changes = without_placement(gpu, changes, key) if key else changes
                return changes if not may_switch or current_placements(gpu, changes) else _switched(gpu, changes, False)

            self._changes.change(gpu.pci_address, changed)
            return switches_off and current_placements(gpu, self._changes_of(gpu)) is None

    def _can_switch(self, gpu: SimulatedGpu, deadline_s: float) -> bool:
        """Return whether MIG mode can be switched now; if it can, wait for as long as the switch takes."""
        if gpu.model.mig is None or not gpu.model.mig.toggles_without_reset:
            return False
        now = self._find(gpu.pci_address)
        if now is None or self._users(now, None) or gpu.mig_delay_ms / 1000 > deadline_s:
            return False
        self._work(gpu, deadline_s)
        return True

    def set_mode(self, facts: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch MIG mode where that needs no reset."""
        with self._turn(facts, deadline_s) as gpu:
            existing = current_placements(gpu, self._changes_of(gpu))
            if (existing is not None) == enabled:
                return
            if existing:
                raise HardwareError(
                    "partition-in-use",
                    f"GPU {gpu.pci_address} still has {len(existing)} MIG partitions",
                    retry=Retry.LATER,
                )
            self._await_switch(gpu, deadline_s)
            self._changes.change(gpu.pci_address, lambda changes: _switched(gpu, changes, enabled))

    def _await_switch(self, gpu: SimulatedGpu, deadline_s: float) -> None:
        """Wait until MIG mode can be switched, and for as long as the switch takes."""
        if gpu.model.mig is None or not gpu.model.mig.toggles_without_reset:
            raise HardwareError("reset-needed", f"MIG mode of GPU {gpu.pci_address} can only be changed by a reset")
        self._await_idle(gpu, None, deadline_s)
        self._work(gpu, deadline_s)

    def _present(self, pci_address: str) -> SimulatedGpu:
        gpu = self._find(pci_address)
        if gpu is None or gpu.is_lost:
            raise HardwareError("gpu-lost", f"GPU {pci_address} is lost", retry=Retry.LATER)
        return gpu

    def _changes_of(self, gpu: SimulatedGpu) -> GpuChanges:
        return self._changes.read().get(gpu.pci_address, _UNCHANGED)

    @contextmanager
    def _turn(self, facts: GpuFacts, deadline_s: float) -> Iterator[SimulatedGpu]:
        """Wait until no other call works on the GPU.

        Raises: HardwareError("hardware.gpu-lost", "hardware.not-answering").
        """
        lock = self._locks[facts.pci_address]
        if not lock.acquire(timeout=max(0.0, deadline_s)):
            raise _late(facts.pci_address, deadline_s)
        try:
            yield self._present(facts.pci_address)
        finally:
            lock.release()

    def _work(self, gpu: SimulatedGpu, deadline_s: float) -> None:
        """Wait for as long as this GPU takes for a change. If the deadline comes first, raise: nothing was changed."""
        delay = gpu.mig_delay_ms / 1000
        if delay:
            time.sleep(min(delay, deadline_s))
        if delay > deadline_s:
            raise _late(gpu.pci_address, deadline_s)

    def _await_idle(self, gpu: SimulatedGpu, partition: PartitionFacts | None, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while True:
            now = self._find(gpu.pci_address)
            pids = ", ".join(map(str, self._users(now, partition))) if now else ""
            if not pids:
                return
            if time.monotonic() >= end:
                what = f"partition {partition.uuid}" if partition else f"GPU {gpu.pci_address}"
                code = "partition-in-use" if partition else "gpu-in-use"
                raise HardwareError(code, f"{what} is in use by process {pids}", retry=Retry.LATER)
            time.sleep(_POLL_S)


def _placement(gpu: SimulatedGpu, name: str, start: int) -> Placement:
    profile = gpu.model.mig.profile(name) if gpu.model.mig else None
    if profile is None:
        raise HardwareError("no-profile", f"GPU {gpu.pci_address} has no MIG profile {name}")
    return Placement(profile, start)


def _switched(gpu: SimulatedGpu, changes: GpuChanges, enabled: bool) -> GpuChanges:
    return GpuChanges(changes.made, changes.destroyed, enabled, gpu.mig is not None)


def _with(gpu: SimulatedGpu, changes: GpuChanges, placement: Placement) -> GpuChanges:
    """Return the changes with one partition added. Raises: HardwareError if it has no room."""
    existing = current_placements(gpu, changes)
    if existing is None or gpu.model.mig is None:
        raise _mig_off(gpu)
    if placement in existing:
        return changes
    faults = [fault for _, fault in placement_faults(gpu.model.mig, (*existing, placement))]
    if faults:
        raise _no_room(gpu, placement, faults[0])
    return with_placement(changes, (placement.profile.name, placement.start))


def _mig_off(gpu: SimulatedGpu) -> HardwareError:
    return HardwareError("mig-off", f"MIG mode of GPU {gpu.pci_address} is off", retry=Retry.LATER)


def _no_room(gpu: SimulatedGpu, placement: Placement, fault: str) -> HardwareError:
    return HardwareError(
        "insufficient-resources",
        f"no room for {placement.profile.name} at slice {placement.start} of GPU {gpu.pci_address}: {fault}",
        retry=Retry.LATER,
    )


def _late(pci: str, deadline_s: float) -> HardwareError:
    return HardwareError("not-answering", f"GPU {pci} did not answer within {deadline_s:g} s", retry=Retry.LATER)


# Modes: compute mode and time slice of simulated devices.

MODES_FILE_NAME = "simulated-modes.json"


class Modes:
    """Modes of one node's devices. `find` returns the profile's GPU with a PCI address, or None where there is none."""

    def __init__(self, folder: Path | None, boot_id: str, find: Callable[[str], SimulatedGpu | None]) -> None:
        self._file = StateFile(folder / MODES_FILE_NAME if folder else None, boot_id)
        self._find = find

    def compute_mode(self, device: SharedDevice) -> ComputeMode:
        """Return the compute mode."""
        self._check(device)
        return ComputeMode(self._file.read().get(device.uuid, {}).get("computeMode", ComputeMode.DEFAULT))

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode) -> None:
        """Set the compute mode."""
        self._check(device)
        self._file.change(device.uuid, lambda state: _changed(state, "computeMode", mode, ComputeMode.DEFAULT))

    def time_slice(self, device: SharedDevice) -> Interval:
        """Return the time slice."""
        self._check(device)
        return Interval(self._file.read().get(device.gpu_uuid, {}).get("timeSlice", Interval.DEFAULT))

    def set_time_slice(self, device: SharedDevice, interval: Interval) -> None:
        """Set the time slice."""
        self._check(device)
        self._file.change(device.gpu_uuid, lambda state: _changed(state, "timeSlice", interval, Interval.DEFAULT))

    def _check(self, device: SharedDevice) -> None:
        gpu = self._find(device.pci_address)
        if gpu is None or gpu.is_lost:
            raise HardwareError("gpu-lost", f"GPU {device.pci_address} is lost", retry=Retry.LATER)


def _changed(state: State | None, key: str, value: str, default: str) -> State:
    others = {name: held for name, held in (state or {}).items() if name != key}
    return others if value == default else {**others, key: value}
