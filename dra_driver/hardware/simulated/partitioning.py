"""Partitioning: MIG mode and partitions of simulated GPUs, created and destroyed.

In: the profile as it is now, and the changes since. Out: new changes, or the errors of real hardware: no room, MIG mode
off, processes on the GPU, a mode that only a reset can change, a lost GPU. Each call takes as long as the profile's
`migDelayMs` states; calls for one GPU wait for each other, those for different GPUs do not.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.simulated.mig import Placement, placement_faults
from dra_driver.hardware.simulated.partition_changes import (
    GpuChanges,
    PartitionChanges,
    current_placements,
    with_placement,
    without_placement,
)
from dra_driver.hardware.simulated.profile import SimulatedGpu
from dra_driver.model.errors import HardwareError, Retry

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
