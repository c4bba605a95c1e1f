"""Device: what lies between the hardware and everything that uses it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts
from dra_driver.model.sharing import MpsSettings, SharingSettings, Strategy, Tenants, strategy_of


class DeviceType(enum.StrEnum):
    """Value of the attribute `type`, by which device classes and opaque configs select."""

    GPU = "gpu"
    MIG = "mig"
    GPU_SHARE = "gpu-share"
    MIG_SHARE = "mig-share"

    @property
    def undivided(self) -> DeviceType:
        """Return the type of the device that shares of this type belong to; an undivided type returns itself."""
        return {DeviceType.GPU_SHARE: DeviceType.GPU, DeviceType.MIG_SHARE: DeviceType.MIG}.get(self, self)


AttributeValue = bool | int | str | tuple[str, str]
"""A published value: a bool, int or string as it is, or a pair such as ("version", "9.0.0") for a semver."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition that Prepare creates: a profile of the GPU at a first memory slice."""

    profile: MigProfile
    start: int

    @property
    def slices(self) -> range:
        """Return the memory slices that the partition covers."""
        return range(self.start, self.start + self.profile.size)

    def is_at(self, partition: PartitionFacts) -> bool:
        """Return whether an existing partition is this one."""
        return (partition.gi_profile_id, partition.start) == (self.profile.gi_profile_id, self.start)


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
    `is_hard` the driver keeps each pod to its shares' memory. `tenant` is the namespace whose claims alone may have it;
    without one, `tenants` NAMESPACE means that it is not shared by MPS at all.
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


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How much of a capacity one share takes, in the capacity's base unit.

    `default` applies where a claim requests no amount. With a `minimum`, the requested amount is raised to it and
    rounded up by `step` to at most `maximum`; with `values`, only those amounts exist. With neither, the requested
    amount is taken as it is.
    """

    default: int
    minimum: int | None = None
    maximum: int | None = None
    step: int | None = None
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device as published.

    `attributes` and `capacity` are keyed by published name (names of our own domain without the domain). A version
    attribute is the pair ("version", text). Capacities are integers in base units (bytes, counts). `gpu` and
    `partition` are the facts behind the device, about which Prepare asks the hardware port. A device with a `cut` is a
    partition that Prepare creates; its `partition` is None unless it exists now. `counters` is what the device consumes
    of its `counter_set`, "" for none. A device with `policies`, one for each of its capacities, may be allocated many
    times.
    """

    name: str
    type: DeviceType
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, int]
    gpu: GpuFacts
    partition: PartitionFacts | None = None
    cut: Cut | None = None
    counter_set: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    share: Share | None = None
    policies: Mapping[str, RequestPolicy] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        """Return the partition's UUID; the GPU's for a GPU, and for a partition that does not exist now."""
        return self.partition.uuid if self.partition else self.gpu.uuid

    @property
    def shared_name(self) -> str:
        """Return the name of the physical device: that of the parent for a replica, the device's own otherwise."""
        return self.share.parent if self.share else self.name
