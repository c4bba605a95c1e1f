"""Device and Inventory: our nouns between hardware and everything that uses it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts, Problem
from dra_driver.model.sharing import MpsSettings, SharingSettings, Strategy, Tenants, strategy_of


class DeviceType(enum.StrEnum):
    """Value of the attribute `type`; device classes and opaque configs choose by it."""

    GPU = "gpu"
    MIG = "mig"
    GPU_SHARE = "gpu-share"
    MIG_SHARE = "mig-share"

    @property
    def undivided(self) -> DeviceType:
        """Return the type of the device that shares of this type are shares of; an undivided device's is its own."""
        return {DeviceType.GPU_SHARE: DeviceType.GPU, DeviceType.MIG_SHARE: DeviceType.MIG}.get(self, self)


AttributeValue = bool | int | str | tuple[str, str]
"""A published value: bool, int or string as they are; ("version", "9.0.0") for a semver."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition that Prepare makes: a profile of the GPU at a first memory slice."""

    profile: MigProfile
    start: int

    @property
    def slices(self) -> range:
        """Return the memory slices that it covers."""
        return range(self.start, self.start + self.profile.size)

    def is_at(self, partition: PartitionFacts) -> bool:
        """Return whether an existing partition is this one."""
        return (partition.gi_profile_id, partition.start) == (self.profile.gi_profile_id, self.start)


class ShareMode(enum.StrEnum):
    """What the shares of a device are counted in."""

    REPLICAS = "replicas"  # so many, all alike
    MEMORY = "memory"  # as much memory as is asked for
    COMPUTE = "compute"  # as many percent of the multiprocessors as are asked for


class Enforcement(enum.StrEnum):
    """What keeps a tenant within its share."""

    NONE = "none"  # nothing
    COOPERATIVE = "cooperative"  # limits that the tenant's own environment carries
    HARD = "hard"  # the driver refuses more memory


@dataclass(frozen=True, slots=True)
class Share:
    """That a device is (a part of) a shared one.

    `parent` is the stable name of the device that is shared: `index` counts the replicas that are published in its
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
        """Name how the device is shared; None where nothing is set up."""
        return None if self.settings is None else strategy_of(self.settings)

    @property
    def enforcement(self) -> Enforcement:
        """Return what keeps tenants within their shares. MPS trusts what the tenant's environment says."""
        if self.is_hard:
            return Enforcement.HARD
        return Enforcement.COOPERATIVE if isinstance(self.settings, MpsSettings) else Enforcement.NONE


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How much of a capacity one share takes, in the capacity's base unit.

    `default` where nothing is asked. With a `minimum` what is asked is raised to it and rounded up by `step` to at most
    `maximum`; `values` are the only amounts there are. With neither what is asked is taken as it is.
    """

    default: int
    minimum: int | None = None
    maximum: int | None = None
    step: int | None = None
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device as published.

    `attributes` and `capacity` are keyed by published name (own-domain names without a domain). A version attribute is
    the pair ("version", text). Capacities are integers in base units (bytes, counts). `gpu` and `partition` are the
    facts behind it: what Prepare asks the hardware port about. A device with a `cut` is a partition that Prepare makes;
    its `partition` is None unless it exists now. `counters` is what it consumes of its `counter_set`, "" for none. A
    device with `policies`, one for each of its capacities, may be allocated many times.
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
    def shared_name(self) -> str:
        """Return the name of the physical device: the parent's for a replica, its own for any other."""
        return self.share.parent if self.share else self.name


@dataclass(frozen=True)
class Inventory:
    """Everything that this node offers now, in name order, and what could not be offered.

    `counter_sets` is what devices that overlap share, by name of set and counter. `plain` is what is offered in place
    of `devices` to a scheduler that does not count: nothing in it overlaps. `instead` is what is offered in place of a
    device that may be allocated many times, by its name, to a scheduler that would not do that: replicas, or the whole
    device. `hidden` are devices that are not offered, but may stand in the allocation of a claim. `waits_for_claims`
    says that some device is offered otherwise once claims let go of it. `waiting_for` is non-empty while the hardware
    does not answer at all.
    """

    devices: tuple[Device, ...] = ()
    problems: tuple[Problem, ...] = ()
    waiting_for: str = ""
    counter_sets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    plain: tuple[Device, ...] = ()
    instead: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    hidden: tuple[Device, ...] = ()
    waits_for_claims: bool = False
    driver_version: str | None = field(default=None, compare=False)

    @cached_property
    def by_name(self) -> Mapping[str, Device]:
        """Look devices up by name: all that a claim may have been allocated, in the form that is offered first."""
        return MappingProxyType({name: forms[0] for name, forms in self._forms.items()})

    def find(self, name: str, share_id: str | None) -> Device | None:
        """Find a device of an allocation, in the form in which it was allocated.

        One that may be allocated many times is allocated with a share ID, any other without; one that was given away
        whole stays so whatever is offered now.
        """
        forms = self._forms.get(name, ())
        return next((form for form in forms if bool(form.policies) is bool(share_id)), forms[0] if forms else None)

    def offered(self, *, with_shares: bool) -> tuple[Device, ...]:
        """Return what is offered to a server that keeps that devices may be allocated many times, or does not."""
        if with_shares:
            return self.devices
        return tuple(one for d in self.devices for one in (self.instead.get(d.name, ()) if d.policies else (d,)))

    @cached_property
    def _forms(self) -> Mapping[str, tuple[Device, ...]]:
        found: dict[str, list[Device]] = {}
        for group in (self.devices, self.plain, *self.instead.values(), self.hidden):
            for device in group:
                found.setdefault(device.name, []).append(device)
        return {name: tuple(forms) for name, forms in found.items()}
