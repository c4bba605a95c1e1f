"""Cuts: what was made of the GPUs since the node started, beside the profile that says how they were then.

In: changes of one GPU at a time. Out: each GPU's placements now. Kept in a file, locked while it is changed and renamed
into place, so that partitions outlive the agent and two agents see the same hardware; another boot id empties it, as a
reboot destroys MIG partitions. Without a folder nothing outlives the process.

The profile stays what an administrator edits: a partition given there comes before one of ours that overlaps it.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dra_driver.hardware.simulated.mig import Placement
from dra_driver.hardware.simulated.profile import SimulatedGpu

FILE_NAME = "simulated-mig.json"
Key = tuple[str, int]  # profile name and first memory slice


@dataclass(frozen=True, slots=True)
class Cut:
    """What differs from the profile on one GPU: partitions made and destroyed, and MIG mode (None: as the profile)."""

    made: tuple[Key, ...] = ()
    destroyed: tuple[Key, ...] = ()
    mode: bool | None = None
    mode_was: bool = False  # what the profile said when the mode was switched; `mode` counts only while it says so


def placements_of(gpu: SimulatedGpu, cut: Cut) -> tuple[Placement, ...] | None:
    """Give a GPU's placements now, in order; None while MIG mode is off. Pure."""
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


def with_placement(cut: Cut, key: Key) -> Cut:
    """Add one partition."""
    if key in cut.destroyed:
        return replace(cut, destroyed=tuple(other for other in cut.destroyed if other != key))
    return replace(cut, made=(*cut.made, key))


def without_placement(gpu: SimulatedGpu, cut: Cut, key: Key) -> Cut:
    """Take one partition away."""
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
        self._path = folder / FILE_NAME if folder else None
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._held: dict[str, Cut] = {}
        self._changes = 0

    def fingerprint(self) -> Hashable:
        """Give what changes with every change."""
        if self._path is None:
            return self._changes
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return (stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def read(self) -> Mapping[str, Cut]:
        """Give the cuts as they are now."""
        if self._path is None:
            return dict(self._held)
        try:
            document = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        if document["bootId"] != self._boot_id:
            return {}
        return {pci: _cut_of(wire) for pci, wire in document["gpus"].items()}

    def change(self, pci: str, edit: Callable[[Cut], Cut]) -> None:
        """Change one GPU's cut; `edit` sees it as it is under the lock, and may raise."""
        with self._lock, self._locked_file():
            cuts = dict(self.read())
            cuts[pci] = edit(cuts.get(pci, Cut()))
            self._write(cuts)

    @contextmanager
    def _locked_file(self) -> Iterator[None]:
        if self._path is None:
            yield
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, cuts: dict[str, Cut]) -> None:
        self._changes += 1
        if self._path is None:
            self._held = cuts
            return
        document = {"bootId": self._boot_id, "gpus": {pci: asdict(cut) for pci, cut in cuts.items()}}
        temporary = self._path.with_suffix(f".{os.getpid()}.new")
        temporary.write_text(json.dumps(document))
        temporary.replace(self._path)


def _cut_of(wire: Mapping[str, Any]) -> Cut:
    made, destroyed = (tuple((str(name), int(start)) for name, start in wire[key]) for key in ("made", "destroyed"))
    return Cut(made, destroyed, wire["mode"], wire["mode_was"])
