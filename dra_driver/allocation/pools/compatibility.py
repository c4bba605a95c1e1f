"""Compatibility groups: which devices may draw from one counter set at the same time.

In: the groups that devices name where they draw from a counter set. Out: a `Company` for each set: what its devices
have in common, and whether one more may join them.

The rule: Kubernetes structured allocator, compatibilityGroupIntersection (1.37, gate DRADeviceCompatibilityGroups).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dra_driver.allocation.pools.devices import DeviceRecord

Groups = frozenset[str]


@dataclass(frozen=True, slots=True)
class Company:
    """The devices that draw from one counter set: the groups that all of them name; None where none names any."""

    common: Groups | None

    def admits(self, groups: Groups) -> bool:
        """Return whether a device with these groups may join; one without groups joins only its like."""
        if not groups or self.common is None:
            return not groups and self.common is None
        return not self.common.isdisjoint(groups)

    def joined_by(self, groups: Groups) -> Company:
        """Return the company with one more device."""
        return self if self.common is None or not groups else Company(self.common & groups)


def company_of(groups: Groups) -> Company:
    """Return the company of a single device."""
    return Company(groups or None)


def groups_of(device: DeviceRecord) -> Iterator[tuple[str, Groups]]:
    """Yield the counter sets that a device draws from, each with the groups that it names there."""
    for one in device.wire.get("consumesCounters") or ():
        yield one["counterSet"], frozenset(one.get("compatibilityGroups") or ())


def companies_of(held: Iterable[DeviceRecord]) -> dict[str, Company]:
    """Return the company in each counter set of the devices of one pool that are in use."""
    found: dict[str, Company] = {}
    for device in held:
        for name, groups in groups_of(device):
            company = found.get(name)
            found[name] = company_of(groups) if company is None else company.joined_by(groups)
    return found
