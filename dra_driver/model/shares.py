"""Shares: the type as which a device is published, and how it takes part in sharing a physical device."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dra_driver.model.sharing import MpsSettings, SharingSettings, Strategy, Tenants, strategy_of


class DeviceType(enum.StrEnum):
    """The value of the attribute `type`, by which device classes and opaque configs select devices."""

    GPU = "gpu"
    MIG = "mig"
    GPU_SHARE = "gpu-share"
    MIG_SHARE = "mig-share"
    VFIO = "vfio"  # a whole GPU for a virtual machine
    IMEX_CHANNEL = "imex-channel"  # by which programs of several nodes reach each other's GPU memory

    @property
    def undivided(self) -> DeviceType:
        """Return the type of the device that shares of this type belong to; any other type returns itself."""
        return {DeviceType.GPU_SHARE: DeviceType.GPU, DeviceType.MIG_SHARE: DeviceType.MIG}.get(self, self)


class ShareMode(enum.StrEnum):
    """What the shares of a device are counted in."""

    REPLICAS = "replicas"  # a fixed number of equal shares
    MEMORY = "memory"  # as much memory as the claim requests
    COMPUTE = "compute"  # as many percent of the multiprocessors as the claim requests


class Enforcement(enum.StrEnum):
    """What keeps a tenant within its share."""

    NONE = "none"  # nothing
    COOPERATIVE = "cooperative"  # limits in the tenant's own environment
    HARD = "hard"  # the driver refuses to allocate more memory


@dataclass(frozen=True, slots=True)
class Share:
    """How a published device takes part in sharing a physical one.

    `parent` is the stable name of the device that is shared; `index` numbers the replicas that are published in its
    place, from 0. Without an index the published device is the parent itself, under its own name, and may be allocated
    many times. `settings` are those of the agent's configuration, complete; a claim may only lower their limits. With
    `is_hard` the driver keeps each pod to the memory of its shares. Only claims of the namespace `tenant` may have the
    share; if `tenant` is empty and `tenants` is NAMESPACE, the device is not shared by MPS at all.
    """

    parent: str
    mode: ShareMode
    index: int | None = None
    settings: SharingSettings | None = None
    is_hard: bool = False
    tenant: str = ""
    tenants: Tenants = Tenants.ANY

    @property
    def strategy(self) -> Strategy | None:
        """Return how the device is shared, or None where nothing is set up."""
        return None if self.settings is None else strategy_of(self.settings)

    @property
    def enforcement(self) -> Enforcement:
        """Return what keeps tenants within their shares. MPS relies on settings in the tenant's environment."""
        if self.is_hard:
            return Enforcement.HARD
        return Enforcement.COOPERATIVE if isinstance(self.settings, MpsSettings) else Enforcement.NONE
