"""Holders: the claims that prevent an action on a GPU, and pods that outlive their claims.

In: the ledger, and claims that it does not know. Out: texts that name the claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from dra_driver.model.names import gpu_name
from dra_driver.plugin.ledger.ledger import Ledger


class UnpreparedDevices(Protocol):
    """The devices that are allocated to claims which the ledger does not know."""

    def names(self, *, is_patient: bool = True) -> frozenset[str]:
        """Return the names of these devices. Raises: DriverError."""


def claims_on(gpus: Collection[str], ledger: Ledger, allocated: UnpreparedDevices, boot_id: str) -> tuple[str, ...]:
    """Return the claims that hold GPUs, by PCI addresses, or parts of them, and pods that outlive their claims.

    Devices with admin access are not held. Raises: DriverError.
    """
    roots = tuple(map(gpu_name, gpus))
    found = [one.full_name for one in ledger.records() if _touches(one.owned_names(), roots)]
    kept = (one for one in ledger.unreleased.of_boot(boot_id) if one.is_in_force and _touches(one.devices, roots))
    found += [f"{one.namespace}/{one.name} (its pod still runs)" for one in kept]
    if not found:  # asked last, because it may cost a request
        names = [name for name in sorted(allocated.names()) if _touches([name], roots)]
        found = [f"of {name}, which is not prepared yet" for name in names]
    return tuple(sorted(found))


def _touches(names: Iterable[str], roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith((f"{root}-", f"{root}/")) for name in names for root in roots)
