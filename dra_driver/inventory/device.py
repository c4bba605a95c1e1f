"""Device and Inventory: our nouns between hardware and everything that uses it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts, Problem


class DeviceType(enum.StrEnum):
    """Value of the attribute `type`; device classes and opaque configs choose by it."""

    GPU = "gpu"
    MIG = "mig"


AttributeValue = bool | int | str | tuple[str, str]
"""A published value: bool, int or string as they are; ("version", "9.0.0") for a semver."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition that Prepare makes: a profile of the GPU at a first memory slice."""

    profile: MigProfile
    start: int

    @property
    def slices(self) -> range:
        """Give the memory slices that it covers."""
        return range(self.start, self.start + self.profile.size)

    def is_at(self, partition: PartitionFacts) -> bool:
        """Say whether an existing partition is this one."""
        return (partition.gi_profile_id, partition.start) == (self.profile.gi_profile_id, self.start)


@dataclass(frozen=True, slots=True)
class Device:
    """One device as published.

    `attributes` and `capacity` are keyed by published name (own-domain names without a domain). A version attribute is
    the pair ("version", text). Capacities are integers in base units (bytes, counts). `gpu` and `partition` are the
    facts behind it: what Prepare asks the hardware port about. A device with a `cut` is a partition that Prepare makes;
    its `partition` is None unless it exists now. `counters` is what it consumes of its `counter_set`, "" for none.
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


@dataclass(frozen=True)
class Inventory:
    """Everything that this node offers now, in name order, and what could not be offered.

    `counter_sets` is what devices that overlap share, by name of set and counter. `plain` is what is offered in place
    of `devices` to a scheduler that does not count: nothing in it overlaps. `waiting_for` is non-empty while the
    hardware does not answer at all.
    """

    devices: tuple[Device, ...] = ()
    problems: tuple[Problem, ...] = ()
    waiting_for: str = ""
    counter_sets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    plain: tuple[Device, ...] = ()
    driver_version: str | None = field(default=None, compare=False)

    @cached_property
    def by_name(self) -> Mapping[str, Device]:
        """Look devices up by name."""
        return MappingProxyType({d.name: d for d in self.devices})
