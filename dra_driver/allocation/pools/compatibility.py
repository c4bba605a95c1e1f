"""Compatibility groups: which devices may draw from one counter set at the same time.

In: the groups that devices name where they draw from a counter set. Out: a `GroupUse` for each set: which groups its
devices have in common, and whether one more may join them.

Source: Kubernetes structured allocator, compatibilityGroupIntersection (1.37, gate DRADeviceCompatibilityGroups).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dra_driver.allocation.pools.devices import DeviceRecord

Groups = frozenset[str]


@dataclass(frozen=True, slots=True)
class GroupUse:
    """The use of one counter set: `common` are the groups that all its devices name, or None if none names any."""

    common: Groups | None

    def admits(self, groups: Groups) -> bool:
        """Return whether a device with these groups may join.

        A device without groups may join only others without groups.
        """
        if not groups or self.common is None:
            return not groups and self.common is None
        return not self.common.isdisjoint(groups)

    def with_device(self, groups: Groups) -> GroupUse:
        """Return the use with one more device."""
        return self if self.common is None or not groups else GroupUse(self.common & groups)


def group_use_of(groups: Groups) -> GroupUse:
    """Return the use by a single device."""
    return GroupUse(groups or None)


def groups_of(device: DeviceRecord) -> Iterator[tuple[str, Groups]]:
    """Yield the counter sets that a device draws from, each with the groups that it names there."""
    for one in device.wire.get("consumesCounters") or ():
        yield one["counterSet"], frozenset(one.get("compatibilityGroups") or ())


def group_uses_of(held: Iterable[DeviceRecord]) -> dict[str, GroupUse]:
    """Return the use of each counter set by the devices of one pool that are in use."""
    found: dict[str, GroupUse] = {}
    for device in held:
        for name, groups in groups_of(device):
            group_use = found.get(name)
            found[name] = group_use_of(groups) if group_use is None else group_use.with_device(groups)
    return found
