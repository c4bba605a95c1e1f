"""Cuts: partitions and MIG modes that changed since the node started; the profile defines the initial ones.

In: changes of one GPU at a time. Out: each GPU's placements now, kept in a file that a reboot empties, as a reboot also
destroys MIG partitions.

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
    # the profile's mode when the mode was switched; `mode` counts only while the profile's is still that
    mode_was: bool = False


def placements_of(gpu: SimulatedGpu, cut: GpuChanges) -> tuple[Placement, ...] | None:
    """Return a GPU's placements now, in order, or None while MIG mode is off. Pure."""
    is_on = gpu.mig is not None
    if cut.mode is not None and cut.mode_was == is_on:
        is_on = cut.mode
    if not is_on:
        return None
    placements = [p for p in gpu.mig or () if (p.profile.name, p.start) not in cut.destroyed]
    taken = {index for placement in placements for index in placement.slices}
    for name, start in cut.made:
        profile = gpu.model.mig.profile(name) if gpu.model.mig else None
        if profile is not None and not taken & set(Placement(profile, start).slices):
            placements.append(Placement(profile, start))
    return tuple(sorted(placements, key=lambda placement: placement.start))


def with_placement(cut: GpuChanges, key: Key) -> GpuChanges:
    """Return the changes with one partition added."""
    if key in cut.destroyed:
        return replace(cut, destroyed=tuple(other for other in cut.destroyed if other != key))
    return replace(cut, made=(*cut.made, key))


def without_placement(gpu: SimulatedGpu, cut: GpuChanges, key: Key) -> GpuChanges:
    """Return the changes with one partition removed."""
    given = {(p.profile.name, p.start) for p in gpu.mig or ()}
    destroyed = tuple(other for other in cut.destroyed if other in given)
    return replace(
        cut,
        made=tuple(other for other in cut.made if other != key),
        destroyed=(*destroyed, key) if key in given else destroyed,
    )


class Cuts:
    """The cuts of all GPUs of a node, by PCI address."""

    def __init__(self, folder: Path | None, boot_id: str) -> None:
        self._file = StateFile(folder / FILE_NAME if folder else None, boot_id)
        self._last: tuple[Mapping[str, Any], Mapping[str, GpuChanges]] = ({}, {})  # what was read, and what it means

    def fingerprint(self) -> Hashable:
        """Return a value that differs after every change."""
        return self._file.fingerprint()

    def read(self) -> Mapping[str, GpuChanges]:
        """Return the cuts as they are now."""
        states, last = self._file.read(), self._last
        if last[0] is not states:
            last = self._last = states, {pci: _cut_of(wire) for pci, wire in states.items()}
        return last[1]

    def change(self, pci: str, edit: Callable[[GpuChanges], GpuChanges]) -> None:
        """Change one GPU's cuts. `edit` receives them as they are under the lock, and may raise."""

        def changed(wire: Mapping[str, Any] | None) -> Mapping[str, Any]:
            cut = edit(_cut_of(wire) if wire else GpuChanges())
            is_as_given = not cut.made and not cut.destroyed and cut.mode in {None, cut.mode_was}
            if is_as_given:
                return {}
            return {"made": cut.made, "destroyed": cut.destroyed, "mode": cut.mode, "mode_was": cut.mode_was}

        self._file.change(pci, changed)


def _cut_of(wire: Mapping[str, Any]) -> GpuChanges:
    made, destroyed = (tuple((str(name), int(start)) for name, start in wire[key]) for key in ("made", "destroyed"))
    return GpuChanges(made, destroyed, wire["mode"], wire["mode_was"])
