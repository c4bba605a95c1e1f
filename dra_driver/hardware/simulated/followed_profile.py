"""Followed profile: the file that describes the hardware, read again when it changes, and the partitions made since."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from pathlib import Path

from dra_driver.hardware.facts import Facts
from dra_driver.hardware.simulated.partition_changes import PartitionChanges
from dra_driver.hardware.simulated.profile import Profile, SimulatedGpu, load_profile, profile_path
from dra_driver.hardware.simulated.profile_facts import ChangedFacts, facts_of
from dra_driver.model.errors import HardwareError, InputError, Retry
from dra_driver.model.stamp import Stamp, stamp_of


class FollowedProfile:
    """A profile on disk. Creating it raises InputError for one that can't be used."""

    def __init__(self, profile: str | Path, node: str, changes: PartitionChanges, vendor: str) -> None:
        self._path = profile_path(profile)
        self._node = node
        self._changes = changes
        self._lock = threading.Lock()
        self._seen: tuple[Hashable, Hashable] = (None, None)
        self._profile: Profile | None = None
        self._known = ChangedFacts(Facts(vendor), Facts(vendor))
        self.node_major: int | None = None
        self.gpus: Mapping[str, SimulatedGpu] = {}  # by PCI address, as the profile defines them
        self._read()

    def stamp(self) -> Stamp | None:
        """Return the stamp of the file as it is now."""
        return stamp_of(self._path)

    def facts(self) -> Facts:
        """Return the facts of the profile as it is on disk now.

        Raises: HardwareError("hardware.profile-unusable") while the file is gone or faulty.
        """
        try:
            return self._read()
        except InputError as error:
            raise HardwareError("profile-unusable", error.message, hint=error.hint, retry=Retry.LATER) from error

    def find(self, pci_address: str) -> SimulatedGpu | None:
        """Return the profile's GPU at an address, without the partitions that were created since."""
        if (stamp := self.stamp()) is None or stamp != self._seen[0]:
            self.facts()
        return self.gpus.get(pci_address)

    def _read(self) -> Facts:
        with self._lock:
            file, changes = stamp_of(self._path), self._changes.fingerprint()
            seen_file, seen_changes = self._seen
            profile = self._profile
            if profile is None or file is None or file != seen_file:
                profile = load_profile(self._path)
                self._take(profile)
            elif changes == seen_changes:
                return self._known.facts
            self._known = self._known.after(self._changes.read(), profile, self._node)
            self._seen = (file, changes)
            return self._known.facts

    def _take(self, profile: Profile) -> None:
        initial = facts_of(profile, self._node)
        self.node_major = profile.node_major
        self._profile, self._known = profile, ChangedFacts(initial, initial)
        self.gpus = {gpu.pci_address: gpu for gpu in profile.gpus}
