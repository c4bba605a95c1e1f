"""Partition changes: partitions and MIG modes that changed since the node started; the profile has the initial ones.

In: changes of one GPU at a time. Out: each GPU's current placements. The changes are kept in a file that a reboot
empties, just as it destroys MIG partitions.

The profile stays the administrator's file: a partition defined there takes precedence over one of this driver that
overlaps it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dra_driver.hardware.simulated.mig import Placement
from dra_driver.hardware.simulated.profile import SimulatedGpu
from dra_driver.hardware.simulated.state_file import StateFile

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
